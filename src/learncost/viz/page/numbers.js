// Numbers as they are read: three significant digits with their zeros kept, exact ones in groups of three.
"use strict";

const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"];
const WORDS = ["", "thousand", "million", "billion", "trillion"];
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** An exact whole number: a document writes those that JavaScript would round as texts. */
function exact(value) {
  return typeof value === "bigint" ? value : BigInt(value ?? 0);
}

function grouped(value) {
  const text = (typeof value === "bigint" ? value : BigInt(value)).toString();
  return text.replace(/^-/, "−").replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Three digits of a number of at least 1, and how often it was divided by 1,000. */
function scaled(value) {
  let number = Math.abs(Number(value)),
    power = 0;
  while (number >= 999.5) {
    number /= 1000;
    power += 1;
  }
  return [digits(number), power];
}

/** Three significant digits, zeros kept. */
function digits(number) {
  if (number === 0) return "0";
  if (number >= 99.95) return number.toFixed(0);
  if (number >= 9.995) return number.toFixed(1);
  if (number >= 0.9995) return number.toFixed(2);
  return Number(number.toPrecision(3)).toString();
}

/** 881 G; below a thousand the number itself. */
function si(value, unit = "") {
  const sign = Number(value) < 0 ? "−" : "";
  if (Math.abs(Number(value)) < 1000 && typeof value === "bigint")
    return `${sign}${value < 0n ? -value : value}${unit ? " " + unit : ""}`;
  const [text, power] = scaled(value);
  const tail = (PREFIXES[power] ?? "?") + unit;
  return sign + text + (tail ? " " + tail : "");
}

/** 881 billion; from 10^15 on 2.58 × 10¹⁸. */
function words(value) {
  const number = Number(value);
  if (number >= 999.5e12) {
    let exponent = Math.floor(Math.log10(number)),
      lead = number / 10 ** exponent;
    if (lead >= 9.995) {
      lead /= 10;
      exponent += 1;
    }
    return `${lead.toFixed(2)} × 10${[...String(exponent)].map((digit) => SUPERSCRIPTS[digit]).join("")}`;
  }
  if (number < 10000) return grouped(BigInt(Math.round(number)));
  const [text, power] = scaled(number);
  return `${text} ${WORDS[power]}`;
}

function bytes(value) {
  const number = Number(value);
  return number < 1000 ? `${number} B` : si(value, "B");
}

const SECONDS = [
  ["years", 31557600],
  ["days", 86400],
  ["h", 3600],
  ["s", 1],
  ["ms", 1e-3],
  ["µs", 1e-6],
  ["ns", 1e-9],
];

function unitOfTime(value) {
  return SECONDS.find(([, size]) => value >= 0.9995 * size) ?? SECONDS[SECONDS.length - 1];
}

function seconds(value) {
  if (!value) return "0 s";
  const [name, size] = unitOfTime(value);
  return `${digits(value / size)} ${name}`;
}

/** 81–232 ms: both ends in the unit of the larger. */
function between(low, high) {
  const [name, size] = unitOfTime(high);
  return `${digits(low / size)}–${digits(high / size)} ${name}`;
}

function joules(value) {
  if (!value) return "0 J";
  return value >= 1 ? si(value, "J") : value >= 1e-3 ? `${digits(value * 1e3)} mJ` : `${digits(value * 1e6)} µJ`;
}

function share(part, total) {
  const percent = Number(total) ? (100 * Number(part)) / Number(total) : 0;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return percent >= 9.95 || percent === 0 ? `${percent.toFixed(0)} %` : `${percent.toFixed(1)} %`;
}

function ratio(amount, base) {
  return `${digits(Number(amount) / Number(base))} ×`;
}

/** What can be shown: its name, its unit, how a value is written short, in prose and exactly. */
const QUANTITIES = {
  flops: { title: "FLOPs", short: (v) => si(v), prose: (v) => words(v), unit: "FLOPs", exact: true },
  maccs: { title: "MACCs", short: (v) => si(v), prose: (v) => words(v), unit: "MACCs", exact: true },
  bytes: { title: "bytes", short: (v) => bytes(v), prose: (v) => bytes(v), unit: "read and written", exact: true },
  seconds: { title: "time", short: (v) => seconds(v), prose: (v) => seconds(v), unit: "predicted", exact: false },
  joules: { title: "energy", short: (v) => joules(v), prose: (v) => joules(v), unit: "modelled", exact: false },
  parameters: { title: "parameters", short: (v) => si(v), prose: (v) => words(v), unit: "parameters", exact: true },
};

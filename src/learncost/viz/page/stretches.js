// The memory of a step at any sizes: its arrays over the moments of its lines, whose bytes are products of axes. What
// is alive at a moment is summed here, to the unit as Python sums it.
"use strict";

/** The memory of a step at these sizes: its peak, and of `curve` every line. Null where it is not known. */
function memoryNow(memory, axes, changed) {
  if (memory?.peak === undefined) return null;
  const other = memory.other_sizes;
  if (other && !changed) return { peak: exact(memory.peak), curve: () => memory.curve ?? null };
  const levels = memory.stretches && levelsNow(memory.stretches, axes);
  if (levels) return { peak: levels.peak, curve: () => (levels.curve ??= curveOf(memory.stretches, levels)), other };
  if (changed) return null;
  return { peak: exact(memory.peak), curve: () => memory.curve ?? null };
}

/** Whether a walk is of these iterations: of as many, or of at least a few where it represents more. */
function isOf(walk, stretches, axes) {
  return Object.entries(stretches.iterations).every(([size, counts], place) =>
    walk.iterations[place] === null
      ? counts.every((count) => sizeOf(count, axes) >= BigInt(stretches.few))
      : axes[size] === BigInt(walk.iterations[place]),
  );
}

/** What is alive at every moment; every line is there once, with the moment of that of its iterations that has most. */
function levelsNow(stretches, axes) {
  const walk = stretches.walks.find((each) => isOf(each, stretches, axes));
  if (!walk) return null;
  const monomials = monomialsAt(stretches, axes),
    sizes = {},
    shapes = stretches.shapes.map((shape) => shape.map((axis) => (sizes[axis] ??= sizeOf(axis, axes)))),
    points = shapes.map((shape) => shape.reduce((all, size) => all * size, 1n)),
    changes = new Array(walk.moments.length + 2).fill(0n);
  const arrays = walk.arrays.map(([source, shape, width, times, first, last]) => {
    const number = typeof times === "number" ? BigInt(times) : countAt(times, monomials),
      amount = points[shape] * BigInt(width) * number;
    changes[first] += amount;
    changes[last + 1] -= amount;
    return { source, shape: shapes[shape], number, bytes: amount, first, last };
  });
  const uncounted = stretches.uncounted.map(([kind, count]) => [kind, countAt(count, monomials)]);
  let level = uncounted.reduce((all, [, amount]) => all + amount, 0n),
    peak = 0n;
  const worst = [];
  walk.moments.forEach((place, at) => {
    level += changes[at + 1];
    if (worst[place] === undefined || level > worst[place].bytes) worst[place] = { moment: at + 1, bytes: level };
    if (level > peak) peak = level;
  });
  return { peak, worst, arrays, uncounted, iterations: Object.fromEntries(stretches.brackets.map(({ count }) => [count, sizeOf(count, axes)])) };
}

/** The same as a curve: lines with their bytes, the kinds that make them, and the arrays of a line. */
function curveOf(stretches, { peak, worst, arrays, uncounted, iterations }) {
  const lines = stretches.lines.map((line, place) => ({ ...line, bytes: worst[place].bytes })),
    kinds = {},
    sums = Object.fromEntries(stretches.kinds.map((kind) => [kind, new Array(lines.length).fill(0n)]));
  const runs = placesByMoment(worst);
  for (const { source, bytes: amount, first, last } of arrays) {
    const sum = sums[stretches.sources[source][4]];
    for (let at = runs.from(first); at < runs.moments.length && runs.moments[at] <= last; at += 1) sum[runs.places[at]] += amount;
  }
  for (const [kind, amount] of uncounted) sums[kind] = sums[kind].map((sum) => sum + amount);
  for (const kind of stretches.kinds) if (sums[kind].some((sum) => sum)) kinds[kind] = sums[kind];
  const alive = (at) => [
    ...uncounted.map(([kind, amount]) => ({ name: kind, kind, shape: [], number: 1n, bytes: amount })),
    ...arrays
      .filter(({ first, last }) => first <= worst[at].moment && worst[at].moment <= last)
      .map(({ source, shape, number, bytes: amount }) => {
        const [name, layer, block, macro_operation, kind] = stretches.sources[source];
        return { name, layer, block, macro_operation, kind, shape, number, bytes: amount };
      }),
  ];
  const brackets = stretches.brackets
    .filter(({ count }) => iterations[count] > 1n)
    .map((bracket) => ({ ...bracket, iterations: iterations[bracket.count] }));
  return { lines, brackets, kinds, peak, peak_at: lines.findIndex((line) => line.bytes === peak), alive };
}

/** The lines in the order of their moments: the places, and the first that is not before a moment. */
function placesByMoment(worst) {
  const places = worst.map((_, place) => place).sort((left, right) => worst[left].moment - worst[right].moment),
    moments = places.map((place) => worst[place].moment);
  const from = (moment) => {
    let [low, high] = [0, moments.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (moments[middle] < moment) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  return { places, moments, from };
}

/** The arrays of a line, those of one name together, the largest first. */
function aliveAt(curve, at) {
  const arrays = curve.alive?.(at) ?? curve.arrays.filter((array) => array.first <= at && array.last >= at),
    merged = new Map();
  for (const array of arrays) {
    const key = `${array.name} ${array.shape} ${array.layer} ${array.block} ${array.kind}`,
      earlier = merged.get(key) ?? { ...array, bytes: 0n, number: 0n };
    merged.set(key, { ...earlier, bytes: earlier.bytes + exact(array.bytes), number: earlier.number + exact(array.number) });
  }
  return [...merged.values()].sort((left, right) => (right.bytes > left.bytes ? 1 : right.bytes < left.bytes ? -1 : 0));
}

/** What a curve shows, in a sentence. */
function findingOf(curve) {
  const line = curve.lines[curve.peak_at],
    phase = passName(line.macro_operation),
    doing = ["forward", "backward"].includes(phase) ? `${phase} pass` : phase;
  const where = line.layer ? `in the ${plainName(line.layer)}` : `at ${line.line}`;
  return `Memory is highest ${where}${doing ? `, in the ${doing}` : ""}`;
}

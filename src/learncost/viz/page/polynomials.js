// Sizes, axes and counts. Counts are polynomials in the axes with whole coefficients, evaluated exactly in BigInt:
// what comes out equals what Python counts, to the unit.
"use strict";

class NotWhole extends Error {}

/** An expression of the document: a number, a name, or an operator before its operands. */
function value(tree, names) {
  if (typeof tree === "number") return BigInt(tree);
  if (typeof tree === "string") {
    if (/^-?\d+$/.test(tree)) return BigInt(tree);
    return names[tree];
  }
  const [sign, ...operands] = tree;
  if (sign === "if") return value(operands[value(operands[0], names) ? 1 : 2], names);
  const values = operands.map((operand) => value(operand, names));
  const [left, right] = values;
  switch (sign) {
    case "+":
      return left + right;
    case "-":
      return left - right;
    case "*":
      return left * right;
    case "/":
      if (left % right)
        throw new NotWhole(
          `${expressionText(operands[0])} ${grouped(left)} is not a multiple of ${expressionText(operands[1])} ${grouped(right)}`,
        );
      return left / right;
    case "//":
      return left / right;
    case "%":
      return left % right;
    case "min":
      return values.reduce((least, next) => (next < least ? next : least));
    case "max":
      return values.reduce((most, next) => (next > most ? next : most));
    case "==":
      return left === right;
    case "!=":
      return left !== right;
    case "<":
      return left < right;
    case "<=":
      return left <= right;
    case ">":
      return left > right;
    case ">=":
      return left >= right;
    case "and":
      return values.every(Boolean);
    case "or":
      return values.some(Boolean);
  }
  throw new Error(`no operator is called ${sign}`);
}

function expressionText(tree) {
  return typeof tree === "object" ? tree.slice(1).map(expressionText).join(` ${tree[0]} `) : String(tree);
}

/** The sizes of a document with what is chosen in their place; what follows from others follows. Throws `NotWhole`. */
function sizesWith(step, chosen) {
  const names = {};
  for (const size of step.sizes) {
    if (chosen[size.name] !== undefined) names[size.name] = exact(chosen[size.name]);
    else names[size.name] = size.rule === null || size.rule === undefined ? exact(size.value) : value(size.rule, names);
  }
  for (const size of step.sizes) {
    if (names[size.name] < 1n) throw new NotWhole(`${size.name} must be at least 1`);
    if (size.most === null || size.most === undefined) continue;
    const most = value(size.most, names);
    if (most > 0n && names[size.name] > most)
      throw new NotWhole(
        `${size.name} ${grouped(names[size.name])} is longer than the ${grouped(most)} positions that ${step.summary.model} learns`,
      );
  }
  return names;
}

function axesOf(step, names) {
  const axes = {};
  for (const [axis, tree] of Object.entries(step.axes)) axes[axis] = value(tree, names);
  return axes;
}

/** The size of an axis as written in a monomial: a name, digits, a part n/3, a sum M+N, the lesser min(e, B M t). */
function sizeOf(axis, axes) {
  if (axis in axes) return axes[axis];
  if (axis.startsWith("min(")) {
    const [plain, factors] = axis.slice(4, -1).split(", ");
    const product = factors.split(" ").reduce((all, name) => all * sizeOf(name, axes), 1n);
    const size = sizeOf(plain, axes);
    return size < product ? size : product;
  }
  const parts = axis.match(/[+-]?[^+-]+/g);
  if (parts.length > 1)
    return parts.reduce(
      (all, part) => all + (part[0] === "-" ? -1n : 1n) * sizeOf(part.replace(/^[+-]/, ""), axes),
      0n,
    );
  const [name, over] = axis.replace(/'+$/, "").split("/");
  const dividend = /^\d+$/.test(name) ? BigInt(name) : axes[name];
  if (!over) return dividend;
  if (dividend % BigInt(over))
    throw new NotWhole(`${name} is ${dividend}, which is not divisible into segments of ${over}: choose a divisor`);
  return dividend / BigInt(over);
}

function monomialsAt(step, axes) {
  const sizes = {};
  const size = (axis) => (sizes[axis] ??= sizeOf(axis, axes));
  return step.monomials.map((monomial) => monomial.reduce((all, axis) => all * size(axis), 1n));
}

/** A count where the monomials have these values. Throws `NotWhole` where a book halves what is odd. */
function countAt(count, monomials) {
  let total = 0n;
  for (let place = 1; place < count.length; place += 1) total += exact(count[place][1]) * monomials[count[place][0]];
  const over = exact(count[0]);
  if (total % over)
    throw new NotWhole("no whole number at these sizes: a price book that halves has an odd number to halve");
  return total / over;
}

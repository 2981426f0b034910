// Time: the seconds of every work of a step on a device, as learncost predicts them from its axes. The larger of its
// operations and its bytes at what the device attains, and its launch.
"use strict";

/** The place before in a growing list, and how far it is to the next one, from 0 to 1 in logarithms. */
function placeIn(places, place) {
  if (place <= places[0]) return [0, 0];
  if (place >= places[places.length - 1]) return [places.length - 1, 0];
  let low = 0,
    high = places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (place < places[middle]) high = middle;
    else low = middle + 1;
  }
  const at = low - 1;
  return [at, Math.log(place / places[at]) / Math.log(places[at + 1] / places[at])];
}

function onCurve(curve, place) {
  const [at, part] = placeIn(curve.places, place);
  return Math.exp(
    (1 - part) * Math.log(curve.values[at]) + part * Math.log(curve.values[Math.min(at + 1, curve.values.length - 1)]),
  );
}

/** Seconds of one product of matrices m × k and k × n. */
function productSeconds(grid, m, n, k) {
  const lengths = [m, n, k].map((size) => Math.max(size, grid.sizes[0])),
    several = grid.sizes.length;
  const places = lengths.map((size) => placeIn(grid.sizes, size));
  let logarithm = 0;
  for (let corner = 0; corner < 8; corner += 1) {
    let weight = 1,
      index = 0;
    for (let axis = 0; axis < 3; axis += 1) {
      const end = (corner >> (2 - axis)) & 1,
        [at, part] = places[axis];
      weight *= end ? part : 1 - part;
      index = index * several + Math.min(at + end, several - 1);
    }
    if (weight) logarithm += weight * Math.log(grid.rates[index]);
  }
  return (2 * lengths[0] * lengths[1] * lengths[2]) / Math.exp(logarithm);
}

/** A work at sizes: what it computes and moves in one iteration, how often it runs, and its main line. */
function workAt(work, monomials) {
  const size = (place) => Number(monomials[place]);
  const points = new Map(),
    products = [];
  let most = -1,
    main = work.lines[0].line;
  for (const line of work.lines) {
    let operations = 0;
    if (line.product) {
      const [batch, m, n, k] = line.product.slice(0, 4).map(size);
      products.push({ batch, m, n, k, orientation: line.product[4], queried: line.product[5] });
      operations += 2 * batch * m * n * k;
    }
    for (const [name, place, often] of line.points ?? []) {
      points.set(name, (points.get(name) ?? 0) + size(place) * often);
      operations += size(place) * often;
    }
    if (operations > most) [most, main] = [operations, line.line];
  }
  const moved = new Map(
    work.bytes.map(([name, bits, parts]) => [
      name,
      Math.floor(
        (Math.max(...parts.map(([place, often, own]) => Math.min(size(place), size(own)) * often)) * bits) / 8,
      ),
    ]),
  );
  const made = work.made.map(([place, width]) => size(place) * width);
  let share = 1;
  const together = work.kernel === undefined ? 0 : size(work.kernel);
  if (work.blocks) share = inBlocks(products, work.blocks, size);
  return {
    main,
    products,
    points,
    moved,
    made,
    share,
    together,
    iterations: Number(countAt(work.repeat, monomials)),
    phase: work.phase,
    sum: [...moved.values()].reduce((all, amount) => all + amount, 0),
  };
}

/** Products are cut as blocks of queries do them; the share of the keys that the blocks see. */
function inBlocks(products, blocks, size) {
  const queries = size(blocks.axis),
    rows = Math.min(blocks.most, queries);
  let share = 1;
  if (blocks.ordered) {
    share = (queries + rows) / (2 * queries);
    if (blocks.windows.length) share = Math.min(share, (Math.max(...blocks.windows.map(size)) + rows) / queries);
  }
  const iterations = Math.max(1, Math.floor(queries / rows));
  for (const product of products.filter((each) => each.queried)) {
    product[product.queried] = Math.floor(product[product.queried] / queries) * rows;
    product.batch *= iterations;
  }
  return share;
}

/** Of each array of each work, the bytes that were touched since it was touched last: within one iteration, else a step. */
function touchedAgo(works) {
  const step = works.reduce((all, work) => all + work.iterations * work.sum, 0),
    last = new Map();
  let now = 0,
    body = 0,
    iterations = null;
  return works.map((work) => {
    if (work.iterations !== iterations) [body, iterations] = [body + 1, work.iterations];
    const ago = new Map();
    for (const name of work.moved.keys()) {
      const earlier = last.get(name);
      ago.set(name, earlier && earlier[0] === body ? Math.min(step, now - earlier[1] + work.sum) : step);
    }
    now += work.sum;
    for (const name of work.moved.keys()) last.set(name, [body, now]);
    return ago;
  });
}

function newBytes(works, from) {
  const gradients = works
    .filter((work) => work.phase === "weight_update")
    .reduce((all, work) => all + work.iterations * work.made.reduce((sum, amount) => sum + amount, 0), 0);
  return works.map((work) => {
    if (work.phase === "optimizer_step") return 0;
    const several = work.phase === "weight_update" && gradients > from;
    return work.made.filter((amount) => several || amount > from).reduce((all, amount) => all + amount, 0);
  });
}

/** Seconds of the step and of its lines: those of a work are at its main line, its other lines have none. */
function timesAt(time, axes) {
  const { rates } = time,
    monomials = monomialsAt(time, axes);
  const works = time.works.map((work) => workAt(work, monomials));
  const ago = touchedAgo(works),
    fresh = newBytes(works, rates.fresh_from);
  const lines = {},
    inside = {},
    points = new Map(),
    limits = { compute: 0, memory: 0, launch: 0 };
  let total = rates.step,
    calls = 0,
    busy = 0;
  works.forEach((work, place) => {
    let compute = 0;
    for (const { batch, m, n, k, orientation } of work.products) {
      if (batch === 1 && !work.together) compute += productSeconds(rates.grids[rates.products[orientation]], m, n, k);
      else
        compute +=
          (work.share * batch * productSeconds(rates.grids[rates.inner], m, n, k)) /
          Math.min(rates.threads, work.together || batch);
    }
    const timedTogether = rates.queues && work.together && work.products.length;
    if (!timedTogether)
      for (const [name, points] of work.points) compute += work.share * points * (rates.ops[name] ?? 0);
    let memory = 0;
    for (const [name, amount] of work.moved) memory += amount / onCurve(rates.bandwidth, ago[place].get(name));
    const launch =
      work.phase === "optimizer_step"
        ? rates.optimizer
        : work.phase === "backward" || work.phase === "weight_update"
          ? rates.launch_backward
          : rates.launch;
    const parts = {
      compute: work.iterations * compute,
      memory: work.iterations * memory + work.iterations * fresh[place] * rates.fresh,
      launch: rates.queues ? 0 : work.iterations * launch,
    };
    const spent = Math.max(parts.compute, work.iterations * memory) + work.iterations * fresh[place] * rates.fresh + parts.launch;
    calls += work.iterations * launch;
    busy += spent;
    const limit = Object.keys(parts).reduce((most, name) => (parts[name] > parts[most] ? name : most), "compute");
    total += spent;
    limits[limit] += spent;
    lines[work.main] = (lines[work.main] ?? 0) + spent;
    const point = points.get(work.main) ?? { line: work.main, seconds: 0, flops: 0, bytes: 0, limits: {} };
    point.seconds += spent;
    point.flops += work.share * Number(countAt(time.works[place].flops, monomials));
    point.bytes += work.iterations * work.sum;
    point.limits[limit] = (point.limits[limit] ?? 0) + spent;
    points.set(work.main, point);
    for (const { line } of time.works[place].lines) if (line !== work.main) inside[line] = work.main;
  });
  // Calls that return before what they call has run take time of their own where they take longer than all of it.
  if (rates.queues) total += Math.max(0, calls - busy);
  return { total, lines, inside, limits, points: [...points.values()] };
}

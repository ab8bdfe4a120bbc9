// Areas in proportion to sizes, as near to squares as can be (Bruls, Huizing and van Wijk 2000).

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

// A box for each size, in the same order; sizes that are not above zero get an empty one.
export function squarified(sizes: number[], within: Box): Box[] {
  const order = sizes.map((_, at) => at).filter((at) => (sizes[at] ?? 0) > 0);
  order.sort((one, other) => (sizes[other] ?? 0) - (sizes[one] ?? 0));
  const total = order.reduce((sum, at) => sum + (sizes[at] ?? 0), 0);
  const boxes: Box[] = sizes.map(() => ({ left: within.left, top: within.top, width: 0, height: 0 }));
  const scale = total > 0 ? (within.width * within.height) / total : 0;
  let left = { ...within };
  let from = 0;
  while (from < order.length) {
    const short = Math.min(left.width, left.height);
    let to = from + 1;
    const areas = (until: number) => order.slice(from, until).map((at) => (sizes[at] ?? 0) * scale);
    while (to < order.length && worst(areas(to + 1), short) <= worst(areas(to), short)) to++;
    left = laid(order.slice(from, to), areas(to), left, boxes);
    from = to;
  }
  return boxes;
}

// The longest of a row's boxes: how many times as long as it is wide.
function worst(areas: number[], short: number): number {
  const sum = areas.reduce((one, other) => one + other, 0);
  const thick = sum / short;
  return Math.max(...areas.map((area) => Math.max(area / thick / thick, (thick * thick) / area)));
}

// One row along the shorter side; what is left of the box is given back.
function laid(row: number[], areas: number[], box: Box, into: Box[]): Box {
  const sum = areas.reduce((one, other) => one + other, 0);
  const upright = box.width >= box.height;
  const thick = sum / (upright ? box.height : box.width);
  let at = upright ? box.top : box.left;
  row.forEach((index, nth) => {
    const long = (areas[nth] ?? 0) / thick;
    into[index] = upright
      ? { left: box.left, top: at, width: thick, height: long }
      : { left: at, top: box.top, width: long, height: thick };
    at += long;
  });
  return upright
    ? { ...box, left: box.left + thick, width: Math.max(0, box.width - thick) }
    : { ...box, top: box.top + thick, height: Math.max(0, box.height - thick) };
}

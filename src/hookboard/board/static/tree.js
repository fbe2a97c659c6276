/** Rows folded along the dotted names of their layers: a block is one row until it is opened. */

const MANY = 40; // so many rows are open at first

/**
 * A node of the tree.
 * @typedef {Object} Node
 * @property {string} name the dotted name from the root; of a row, the row's.
 * @property {string} label what is shown of it under its parent.
 * @property {number} row the index of its own row; -1 if it has none.
 * @property {Node[]} children
 * @property {number[]} rows the indices of its own row and all rows below.
 */

/** The tree of some rows. Blocks that hold nothing but one other block are one with it. */
export function treeOf(rows) {
  const root = { name: "", label: "", row: -1, children: [], rows: [], below: new Map() };
  rows.forEach(({ name, index }) => {
    let node = root;
    for (const part of partsOf(name)) {
      const full = node === root ? part : `${node.name}.${part}`;
      if (!node.below.has(part)) {
        const made = { name: full, label: labelOf(node, part), row: -1, children: [], rows: [], below: new Map() };
        node.below.set(part, made);
        node.children.push(made);
      }
      node = node.below.get(part);
      node.rows.push(index);
    }
    node.row = index;
  });
  root.children = root.children.map(joined);
  return root.children;
}

/** The dotted parts; what follows the first slash is the index of a tensor and stays with the last part. */
function partsOf(name) {
  const [module] = name.split("/", 1);
  const parts = module.split(".");
  parts[parts.length - 1] += name.slice(module.length);
  return parts;
}

/** A number says nothing alone: "layers.7". */
function labelOf(parent, part) {
  const above = parent.name.split(".").pop();
  return /^\d+($|\/)/.test(part) && above && !/^\d+$/.test(above) ? `${above}.${part}` : part;
}

function joined(node) {
  let children = node.children.map(joined);
  if (node.row < 0 && children.length === 1) {
    const [only] = children;
    const label = only.name.slice(node.name.length - node.label.length);
    return { ...only, label };
  }
  return { ...node, children, below: undefined };
}

/**
 * The blocks that are open at first: level by level as long as there are few rows, and those above a sick layer.
 * @param {Node[]} tree the tree.
 * @param {string[]} sick names of layers with a verdict.
 * @returns {Set<string>} their names.
 */
export function openAtFirst(tree, sick) {
  const open = new Set();
  let level = tree;
  let shown = tree.length;
  while (level.length) {
    const blocks = level.filter((node) => node.children.length);
    const more = blocks.flatMap((node) => node.children);
    shown += more.length;
    if (shown > MANY) break;
    blocks.forEach((node) => open.add(node.name));
    level = more;
  }
  const walk = (nodes) =>
    nodes.forEach((node) => {
      const isAbove = node.children.length && sick.some((name) => isBelow(name, node.name));
      if (isAbove) open.add(node.name);
      walk(node.children);
    });
  walk(tree);
  return open;
}

/** Whether a name lies below a block. */
export function isBelow(name, block) {
  return name.startsWith(`${block}.`) || name.startsWith(`${block}/`);
}

/**
 * The rows that are seen, from top to bottom.
 * @param {Node[]} tree the tree.
 * @param {Set<string>} open the names of open blocks.
 * @param {(a: Node, b: Node) => number} [order] sorts the children of a block.
 * @returns {{node: Node, depth: number, isBlock: boolean, isOpen: boolean}[]}
 */
export function seen(tree, open, order) {
  const made = [];
  const walk = (nodes, depth) => {
    for (const node of order ? [...nodes].sort(order) : nodes) {
      const isBlock = node.children.length > 0;
      const isOpen = isBlock && open.has(node.name);
      made.push({ node, depth, isBlock, isOpen });
      if (isOpen) walk(node.children, depth + 1);
    }
  };
  walk(tree, 0);
  return made;
}

/** Names as people sort them: numbers in them as numbers. */
export const natural = new Intl.Collator("en", { numeric: true }).compare;

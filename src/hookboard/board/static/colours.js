/** Colours: readable for the colour-blind, in light and in dark. */

/** Viridis without its darkest end, which is kept for 0. */
const VALUES = [
  [0, "#472c7a"], [0.125, "#3b518b"], [0.25, "#2c718e"], [0.375, "#21908d"], [0.5, "#27ad81"],
  [0.65, "#5cc863"], [0.8, "#aadc32"], [1, "#fde725"],
]; // prettier-ignore

const AROUND = {
  light: [[0, "#08439c"], [0.25, "#5f9bd6"], [0.45, "#e3ebf2"], [0.5, "#f4f4f4"], [0.55, "#f6eadf"], [0.75, "#ee9d4f"], [1, "#a63d00"]],
  dark: [[0, "#7cc0ff"], [0.25, "#2f6db3"], [0.45, "#3b4652"], [0.5, "#414141"], [0.55, "#50453b"], [0.75, "#c46f1e"], [1, "#ffc68a"]],
}; // prettier-ignore

/** The colours of a theme, for plots; those of the page are in style.css. */
export function coloursOf(isDark) {
  const theme = isDark ? "dark" : "light";
  return {
    values: VALUES,
    around: AROUND[theme],
    zero: isDark ? "#000000" : "#14101c",
    broken: "#ff00b8",
    ink: isDark ? "#f1f1f1" : "#212121",
    faint: isDark ? "#a8a8a8" : "#616161",
    line: isDark ? "#5a5a5a" : "#d5d5d5",
    paper: isDark ? "#303030" : "#ffffff",
    band: isDark ? "rgba(190,190,190,0.22)" : "rgba(100,110,130,0.18)",
    usual: isDark ? "#bdbdbd" : "#757575",
    own: isDark ? "#ffb04d" : "#e65100",
    forward: isDark ? "#6fc3ff" : "#1565c0",
    backward: isDark ? "#ffb04d" : "#c75300",
    alarm: isDark ? "#ff6b6b" : "#c5162e",
    note: isDark ? "#ffca4d" : "#9a6200",
  };
}

/** The colours of a scale as a CSS gradient from left to right. */
export function gradient(colours) {
  return `linear-gradient(to right, ${colours.map(([at, colour]) => `${colour} ${at * 100}%`).join(", ")})`;
}

export function render() {
  document.body.textContent = "hookboard";
}

// Light or dark: as the system says, or as the reader has chosen here.
const KEY = "gruppetto-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function begin(button, onChange) {
  const chosen = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const apply = () => {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "☾" : "☀";
    button.setAttribute("aria-label", theme === "dark" ? "Dark; change to light" : "Light; change to dark");
    onChange();
  };
  button.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(KEY, next); } catch { /* it holds for this page then */ }
    document.documentElement.dataset.theme = next;
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

export function colours() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

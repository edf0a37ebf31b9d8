// Dark or light, as Airflow's own switch says, which is kept in this origin's storage; without one as the system does.

const KEYS = ["theme", "chakra-ui-color-mode"];

function chosen() {
  try {
    return KEYS.map((key) => localStorage.getItem(key)?.replaceAll('"', "")).find((value) => value === "dark" || value === "light");
  } catch {
    return undefined; // storage is switched off
  }
}

function apply() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen() ?? system;
}

/** Follow the switch for as long as the page is open. */
export function followTheme() {
  apply();
  addEventListener("storage", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
}

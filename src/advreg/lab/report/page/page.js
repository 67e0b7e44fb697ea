"use strict";
// Light and dark, the place in the contents, and tables to copy.
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  function wear(value) {
    if (value) root.dataset.theme = value;
    theme.textContent = isDark() ? "Light" : "Dark";
  }

  // The page of a file may not have a storage.
  function remembered(value) {
    try {
      if (value) localStorage.setItem("advreg-theme", value);
      return localStorage.getItem("advreg-theme");
    } catch {
      return null;
    }
  }

  theme.addEventListener("click", () => {
    wear(isDark() ? "light" : "dark");
    remembered(root.dataset.theme);
  });
  system.addEventListener("change", () => wear());
  wear(remembered());

  const cellsOf = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));

  function markdown(table) {
    const line = (cells) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
    const [head, ...body] = cellsOf(table);
    return [line(head), `|${head.map((_, i) => (i ? "---:" : "---")).join("|")}|`, ...body.map(line)].join("\n") + "\n";
  }

  function csv(table) {
    const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
    return cellsOf(table).map((cells) => cells.map(quoted).join(",") + "\n").join("");
  }

  // Without the clipboard of a secure page, the text is selected and copied.
  function copyBySelection(text) {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-does]");
    if (!button) return;
    const table = button.closest("figure").querySelector("table");
    const text = button.dataset.does === "csv" ? csv(table) : markdown(table);
    const before = (button.dataset.text ??= button.textContent);
    const done = await navigator.clipboard.writeText(text).then(() => true, () => copyBySelection(text));
    button.textContent = done ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = before), 1400);
  });

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const reader = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((each) => each.isIntersecting)) {
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-15% 0px -75% 0px" },
  );
  document.querySelectorAll("section[id]").forEach((section) => reader.observe(section));
  root.dataset.ready = "true";
})();

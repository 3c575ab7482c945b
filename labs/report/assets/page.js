"use strict";
(() => {
  const zh = document.documentElement.dataset.lang === "zh";
  const say = { copy: zh ? "复制" : "Copy", copied: zh ? "已复制" : "Copied", chosen: zh ? "已选中，可复制" : "Selected, copy it" };
  for (const box of document.querySelectorAll(".copy")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = say.copy;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      const code = box.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = say.copied;
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = say.chosen;
      }
      setTimeout(() => { button.textContent = say.copy; }, 2500);
    });
    box.append(button);
  }
})();

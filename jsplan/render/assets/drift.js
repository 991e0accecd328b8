"use strict";
const words = document.getElementById("words"), grade = document.getElementById("grade");

function show() {
  const wanted = words.value.toLowerCase();
  for (const one of document.querySelectorAll("article"))
    one.hidden = !(one.textContent.toLowerCase().includes(wanted) && (!grade.value || one.classList.contains(grade.value)));
  for (const part of document.querySelectorAll("section"))
    part.hidden = !part.querySelector("article:not([hidden])");
}

words.oninput = grade.onchange = show;
document.querySelector("form").onsubmit = (event) => event.preventDefault();

"use strict";
/* Write: both models continue a prompt, one character after another. */
const WRITING = { task: "write", count: 500, seed: 1337, pace: 120 }; // pace: characters a second, at most

function write(panel, prompt) {
  const text = make("span");
  const past = make("span", { className: "past" });
  let length = prompt.length;
  panel.stop();
  panel.text.replaceChildren(make("b", { textContent: prompt }), text, past);
  panel.ask({ ...WRITING, prompt, temperature: +$("temperature").value }, ({ char, speed }) => {
    if (length === panel.trained) past.before(panel.mark());
    (length < panel.trained ? text : past).append(char);
    length++;
    panel.text.scrollTop = panel.text.scrollHeight;
    speed = Math.round(speed);
    panel.status.textContent = say(`${length} characters; it can write ${speed} a second.`, `${length} 个字符；每秒可写 ${speed} 个。`);
  });
}

views.write = {
  show() {
    const prompt = $("prompt").value;
    const unknown = Array.from(prompt).find(char => !data.rope.chars.includes(char));
    let mistake = prompt ? "" : say("The prompt must not be empty.", "开头不能为空。");
    if (unknown) mistake = say(`The models do not know the character ${unknown}`, `模型不认识字符 ${unknown}`);
    $("mistake").textContent = mistake;
    if (!mistake) for (const panel of panels) write(panel, prompt);
  },
};
$("go").onclick = () => refresh();
$("temperature").oninput = () => $("degrees").textContent = $("temperature").value;

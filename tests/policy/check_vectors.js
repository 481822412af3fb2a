// What clients/policy/decide.js must say, for Node (as a program) and for a browser (as a module).
// The result is one line: "448 vectors, 0 wrong, policy same".

export function check(policy, file) {
  const wrong = file.vectors.filter(
    ([input, borders, output]) =>
      policy.decideWords(input, borders).join() !== output.join(),
  );
  const digest = policy.digest === file.policy ? "same" : policy.digest;
  const names = `${named(policy)}, ${refused(policy)}`;
  return `${file.vectors.length} vectors, ${wrong.length} wrong, policy ${digest}, ${names}`;
}

// What it says to a count below 0.
function refused(policy) {
  try {
    return JSON.stringify(policy.decide({ promptCharacters: -1 }));
  } catch (error) {
    return error.message;
  }
}

// The names of one decision, so that they are checked too.
function named(policy) {
  const decision = policy.decide(
    {
      promptCharacters: 60000,
      systemCharacters: 5000,
      outputTokensMax: 100,
      borders: [{ position: 20000, kind: "message" }],
    },
    { cores: 8, memoryMib: 4096 },
    { kvTokensTotal: 30000, kvTokensFree: 20100 },
  );
  return JSON.stringify(decision);
}

if (typeof process !== "undefined") {
  const { readFile } = await import("node:fs/promises");
  const { loadPolicy } = await import("../../clients/policy/decide.js");
  const file = JSON.parse(await readFile(new URL("vectors.json", import.meta.url), "utf8"));
  console.log(check(await loadPolicy(), file));
}

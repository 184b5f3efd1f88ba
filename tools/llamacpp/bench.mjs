// Measures llama.cpp through node-llama-cpp, as a command for `restore-lab bench --peer`:
//
//   npm install --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1
//   node bench.mjs MODEL.gguf {prompt} {gen} {threads}
//
// It prints the lines of `llama-bench -o jsonl`: the prefill of a prompt from an empty cache, and
// the decoding after it. FLASH=1 turns flash attention on.
import {getLlama} from "node-llama-cpp";

const [path, prompt, gen, threads] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: path, gpuLayers: 0});
const context = await model.createContext({
  contextSize: prompt + gen + 64, batchSize: 2048, threads,
  flashAttention: process.env.FLASH === "1",
});
const sequence = context.getSequence();
const tokens = n => Array.from({length: n}, (_, i) => 1 + (i * 7919 + 13) % 250);
await sequence.evaluateWithoutGeneratingNewTokens(tokens(32)); // warm-up
await sequence.clearHistory();

const start = performance.now(), times = [];
for await (const _ of sequence.evaluate(tokens(prompt), {temperature: 0, yieldEogToken: true})) {
  times.push(performance.now());
  if (times.length > gen) break;
}
const ns = (from, to) => Math.round((to - from) * 1e6);
console.log(JSON.stringify({n_prompt: prompt, n_gen: 0, avg_ns: ns(start, times[0])}));
if (gen > 0) {
  console.log(JSON.stringify({n_prompt: 0, n_gen: gen, avg_ns: ns(times[0], times[gen])}));
}
process.exit(0);

// Every route through the official OpenAI SDK and Ollama's client for JavaScript.

import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const need = createRequire(process.env.NODE_PATH + '/x.js')
const OpenAI = need('openai').OpenAI ?? need('openai').default
const { Ollama } = need('ollama')

const url = process.argv[2]
const bytes = readFileSync(new URL('../../docs/scene.png', import.meta.url))
const scene = 'data:image/png;base64,' + bytes.toString('base64')
const client = new OpenAI({ baseURL: url + '/v1', apiKey: 'none', maxRetries: 0 })
const DESCRIPTION = 'A red cross at the top left'

function expect(condition, what) {
  if (!condition) { console.error('failed:', what); process.exit(1) }
  console.log('ok:', what)
}

const messages = [{ role: 'user', content: [{ type: 'image_url', image_url: { url: scene } }, { type: 'text', text: 'Describe the image.' }] }]
const models = await client.models.list()
expect(models.data[0].id === 'builtin', 'models')
const a = await client.chat.completions.create({ model: 'builtin', messages })
const text = a.choices[0].message.content
expect(text.startsWith(DESCRIPTION) && a.restore.visual_tokens.before === 576, 'chat')
let joined = '', usage
for await (const chunk of await client.chat.completions.create({ model: 'builtin', messages, stream: true, stream_options: { include_usage: true } })) {
  joined += chunk.choices[0]?.delta?.content ?? ''
  usage = chunk.usage ?? usage
}
expect(joined === text && usage.prompt_tokens === a.usage.prompt_tokens, 'stream')
const c = await client.completions.create({ model: 'builtin', prompt: 'Hello', max_tokens: 3 })
expect(c.object === 'text_completion', 'completions')
const input = [{ role: 'user', content: [{ type: 'input_image', image_url: scene, detail: 'auto' }, { type: 'input_text', text: 'Describe the image.' }] }]
const r = await client.responses.create({ model: 'builtin', input })
expect(r.output_text === text && r.status === 'completed', 'responses')
const events = []
for await (const e of await client.responses.create({ model: 'builtin', input, stream: true })) events.push(e.type)
expect(events[0] === 'response.created' && events.at(-1) === 'response.completed', 'responses, streamed')
try {
  await client.chat.completions.create({ model: 'builtin', messages, temperature: 5 })
  expect(false, 'refusal')
} catch (e) {
  expect(e.status === 400 && e.code === 'decimal_above_max_value' && e.param === 'temperature', 'refusal: ' + e.message)
}

const ollama = new Ollama({ host: url })
const o = await ollama.chat({ model: 'builtin', messages: [{ role: 'user', content: 'Describe the image.', images: [bytes] }] })
expect(o.message.content === text && o.done, 'ollama chat')
joined = ''
for await (const p of await ollama.generate({ model: 'builtin', prompt: 'Describe the image.', images: [bytes], stream: true })) joined += p.response
expect(joined === text, 'ollama generate, streamed')
expect((await ollama.list()).models[0].name === 'builtin:latest', 'ollama list')
console.log('all is well')

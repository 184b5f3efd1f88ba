// Requests for structured output, as openai-node with Zod and Vercel's AI SDK send them.
//
//   NODE_PATH=DIR/node_modules node schemas.mjs > FILE   prints a request a line, {client, name, body}
//   NODE_PATH=DIR/node_modules node schemas.mjs URL      asks a server, and parses the answers with the library

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const need = createRequire(process.env.NODE_PATH + '/x.js')
const load = async (name) => import(pathToFileURL(need.resolve(name)).href)
const { z } = await load('zod')
const { OpenAI } = await load('openai')
const { zodResponseFormat } = await load('openai/helpers/zod')
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible')
const { generateObject } = await load('ai')

const Color = z.enum(['red', 'green', 'blue'])
const Box = z.object({ x: z.int().min(0).max(4096), y: z.int().min(0).max(4096), label: z.string().max(40) })
const Node = z.object({ name: z.string().max(12), get children() { return z.array(Node).max(2) } })

// Schemas that OpenAI's strict form takes, for both clients.
const strict = {
  integers: z.object({ count: z.int(), big: z.number().int() }),
  ranges: z.object({ percent: z.number().min(0).max(100), rank: z.int().min(1).max(10), positive: z.number().positive(), negative: z.int().negative() }),
  floats: z.object({ single: z.float32(), double: z.float64(), small: z.int32() }),
  multiples: z.object({ step: z.int().multipleOf(5), even: z.int().min(0).max(64).multipleOf(2) }),
  enums: z.object({ color: Color, fixed: z.literal('yes'), mixed: z.literal([1, 'a', null]) }),
  nullable: z.object({ note: z.string().max(20).nullable(), box: Box.nullable() }),
  dates: z.object({ day: z.iso.date(), at: z.iso.datetime(), local: z.iso.datetime({ offset: true }), time: z.iso.time({ precision: 3 }) }),
  identifiers: z.object({ id: z.uuid(), v4: z.uuidv4(), ulid: z.ulid(), cuid: z.cuid2().max(12), nano: z.nanoid() }),
  addresses: z.object({ mail: z.email(), link: z.url(), v4: z.ipv4(), v6: z.ipv6(), net: z.cidrv4() }),
  patterns: z.object({ code: z.string().regex(/^[A-Z]{3}-\d{2,4}$/), phone: z.e164(), lower: z.string().lowercase().max(9) }),
  lists: z.object({ tags: z.array(z.string().max(8)).min(1).max(3), boxes: z.array(Box).length(2) }),
  union: z.object({ value: z.union([z.string().max(8), z.int(), z.boolean(), z.null()]) }),
  discriminated: z.object({ shape: z.union([z.object({ kind: z.literal('circle'), r: z.number() }), z.object({ kind: z.literal('square'), side: z.int() })]) }),
  recursive: z.object({ root: Node }),
  reused: z.object({ a: Box, b: Box, more: z.array(Box).max(1) }),
  described: z.object({ title: z.string().max(30).describe('A title'), year: z.int().describe('A year').meta({ title: 'Year', examples: [1999] }) }).describe('A book'),
}
// Schemas that only the AI SDK sends.
const loose = {
  optional: z.object({ name: z.string().max(9), age: z.int().optional(), nick: z.string().max(9).nullish() }),
  affixes: z.object({ ends: z.string().startsWith('a').endsWith('z').max(9), has: z.string().includes('-').max(9) }),
  defaults: z.object({ level: z.int().default(3), mode: Color.default('red') }),
  record: z.object({ scores: z.record(z.string(), z.number()), flags: z.record(z.enum(['a', 'b']), z.boolean()) }),
  choice: z.discriminatedUnion('kind', [z.object({ kind: z.literal('dog'), barks: z.boolean() }), z.object({ kind: z.literal('cat'), lives: z.int().min(1).max(9) })]),
  extended: Box.extend({ color: Color, area: z.number().nonnegative() }),
  intersection: z.object({ both: z.looseObject({ a: z.int() }).and(z.looseObject({ b: z.boolean() })) }),
}

const url = process.argv[2]
const messages = [{ role: 'user', content: 'Describe the picture as JSON.' }]
let client, name
const capture = async (_, init) => {
  console.log(JSON.stringify({ client, name, body: JSON.parse(init.body) }))
  return new Response(JSON.stringify({ error: { message: 'recorded' } }), { status: 400, headers: { 'content-type': 'application/json' } })
}
const openai = new OpenAI({ baseURL: (url ?? 'http://record') + '/v1', apiKey: 'none', maxRetries: 0, fetch: url ? undefined : capture })
const vercel = createOpenAICompatible({ name: 'restore', baseURL: (url ?? 'http://record') + '/v1', supportsStructuredOutputs: true, fetch: url ? undefined : capture })('builtin')

async function ask(what, call, parsed) {
  try {
    const a = await call()
    if (url) console.log('ok:', client, what, JSON.stringify(parsed(a)))
  } catch (e) {
    if (e.finishReason === 'length') console.log('cut:', client, what)
    else if (url) { console.error('failed:', client, what, e); process.exitCode = 1 } else if (!String(e.message).includes('recorded')) throw e
  }
}
const seed = 7
for (const [what, schema] of Object.entries(strict)) {
  client = 'openai-node', name = what
  await ask(what, () => openai.chat.completions.parse({ model: 'builtin', messages, temperature: 1, seed, response_format: zodResponseFormat(schema, what) }), (a) => a.choices[0].message.parsed)
}
for (const [what, schema] of Object.entries({ ...strict, ...loose })) {
  client = 'ai-sdk', name = what
  await ask(what, () => generateObject({ model: vercel, schema, messages, temperature: 1, seed, maxRetries: 0 }), (a) => a.object)
}

// The page of restore serve: a picture, a question, and what became of the picture's
// tokens. No library and no build step.

const $ = (id) => document.getElementById(id)
const store = (kind) => ({
  get(key, none) { try { return JSON.parse(kind.getItem('restore.' + key)) ?? none } catch { return none } },
  set(key, value) { try { kind.setItem('restore.' + key, JSON.stringify(value)) } catch { /* full or forbidden */ } },
})
const kept = store(localStorage), session = store(sessionStorage)

let model = null // the object of /v1/models
let picture = null // { url, name, tokens, thumb }
let running = null // AbortController
let begun = false // whether a set of controls was touched

const sides = ['a', 'b']

// Errors

function fail(message) {
  $('alert').textContent = message
  $('alert').hidden = !message
}

function askForKey(show) {
  $('key-box').hidden = !show
  if (show) $('key').focus()
}

class Refused extends Error {}

async function api(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' }
  const key = session.get('key', '')
  if (key) headers.Authorization = 'Bearer ' + key
  const reply = await fetch(path, { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), signal, credentials: 'omit' })
  if (reply.ok) return reply
  let message = reply.status + ' ' + reply.statusText
  try { message = (await reply.json()).error.message } catch { /* no JSON: the status must do */ }
  if (reply.status === 401) askForKey(true)
  throw new Refused(message)
}

// Model

async function loadModel() {
  try {
    model = (await (await api('/v1/models')).json()).data[0]
  } catch (e) {
    fail(e.message)
    return
  }
  fail('')
  askForKey(false)
  $('model').textContent = `${model.id} · ${model.max_model_len} positions`
  for (const side of sides) {
    const select = $('method-' + side)
    select.replaceChildren(...['none', ...model.restore.methods.filter((m) => m !== 'none')].map((name) => new Option(name, name)))
  }
  reset()
}

// budget is what the server does when a request says nothing.
function budget(tokens) {
  const d = model.defaults.restore ?? {}
  if ((d.base ?? 'none') === 'none') return tokens
  const n = d.n_vis ?? (d.keep_ratio ? Math.round(d.keep_ratio * tokens) : tokens)
  return Math.max(1, Math.min(n, tokens))
}

// reset sets sliders and methods to what the server does.
function reset() {
  const tokens = picture?.tokens ?? model.restore.visual_tokens ?? 576
  for (const side of sides) {
    const slider = $('tokens-' + side)
    const whole = side === 'b'
    slider.max = tokens
    if (!begun) {
      slider.value = whole ? tokens : budget(tokens)
      $('method-' + side).value = whole ? 'none' : model.defaults.restore?.base ?? 'none'
    }
    show(side)
  }
  predict()
}

function show(side) {
  const slider = $('tokens-' + side)
  const none = $('method-' + side).value === 'none'
  slider.disabled = none
  if (none) slider.value = slider.max
  const text = `${slider.value} of ${slider.max}`
  slider.setAttribute('aria-valuetext', text)
  $('value-' + side).textContent = text
}

// predict says what the next question is going to take: by what was measured in this
// browser, or else by what the server measured.
function predict() {
  if (!model) return
  const known = kept.get('measured.' + model.id, null) ?? model.restore.predict
  if (!known) return
  const one = (side) => {
    const n = Number($('tokens-' + side).value) + 60
    return [known.encode_ms + n * known.token_ms, (n + 64) * (model.restore.predict?.kv_bytes ?? known.kv_bytes ?? 0)]
  }
  const [ms, bytes] = one('a')
  let text = `first token in about ${time(ms)}, ${memory(bytes)}`
  if ($('compare').checked) {
    const [msB, bytesB] = one('b')
    text += `; B ${time(msB)}, ${memory(bytesB)}`
  }
  $('prediction').textContent = text
}

const time = (ms) => ms >= 1000 ? (ms / 1000).toFixed(1) + ' s' : ms >= 100 ? Math.round(ms) + ' ms' : ms.toFixed(1) + ' ms'
const memory = (bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 0) + ' MB'

// measure learns from an answer.
function measure(t, images) {
  const now = kept.get('measured.' + model.id, null) ?? { ...model.restore.predict }
  const mix = (old, value) => old > 0 ? 0.5 * old + 0.5 * value : value
  if (t.prompt_n > 8) now.token_ms = mix(now.token_ms, t.prompt_per_token_ms)
  if (t.encode_ms > 0 && images > 0) now.encode_ms = mix(now.encode_ms, (t.prepare_ms + t.encode_ms + t.select_ms + t.merge_ms) / images)
  kept.set('measured.' + model.id, now)
  predict()
}

// Picture

const readURL = (blob) => new Promise((done, failed) => {
  const r = new FileReader()
  r.onload = () => done(r.result)
  r.onerror = () => failed(r.error)
  r.readAsDataURL(blob)
})

async function setPicture(blob, name) {
  if (!blob) return
  fail('')
  const url = await readURL(blob)
  await showPicture({ url, name: name || blob.name || 'picture', size: blob.size })
}

async function showPicture(p) {
  picture = p
  const img = $('preview')
  img.src = p.url
  $('drop').hidden = true
  $('shown').hidden = false
  $('facts').textContent = p.name
  try {
    await img.decode()
    p.thumb = thumbnail(img)
    p.width = img.naturalWidth
    p.height = img.naturalHeight
    $('facts').textContent = `${p.name} · ${p.width} × ${p.height}`
  } catch { /* the server says what is wrong with it */ }
  await count(p)
}

// count asks how many tokens the picture has.
async function count(p) {
  if (!model) return
  try {
    const body = { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: p.url } }] }], restore: { base: 'none' } }
    const reply = await (await api('/tokenize', body)).json()
    if (picture !== p) return
    p.tokens = reply.restore.images[0].tokens
    $('facts').textContent = `${p.name} · ${p.width} × ${p.height} · ${p.tokens} visual tokens`
    reset()
  } catch (e) {
    if (picture === p) fail(e.message)
  }
}

function thumbnail(img) {
  const c = document.createElement('canvas')
  c.width = c.height = 88
  const side = Math.min(img.naturalWidth, img.naturalHeight)
  c.getContext('2d').drawImage(img, (img.naturalWidth - side) / 2, (img.naturalHeight - side) / 2, side, side, 0, 0, 88, 88)
  return c.toDataURL('image/jpeg', 0.7)
}

function acceptDrops() {
  const region = $('picture')
  for (const event of ['dragenter', 'dragover']) {
    region.addEventListener(event, (e) => { e.preventDefault(); region.classList.add('over') })
  }
  for (const event of ['dragleave', 'drop']) {
    region.addEventListener(event, (e) => { e.preventDefault(); region.classList.remove('over') })
  }
  region.addEventListener('drop', (e) => setPicture(e.dataTransfer.files[0]))
  // A drop beside the region must not open the file in place of the page.
  for (const event of ['dragover', 'drop']) window.addEventListener(event, (e) => e.preventDefault())
  document.addEventListener('paste', (e) => {
    const file = [...(e.clipboardData?.files ?? [])].find((f) => f.type.startsWith('image/'))
    if (file) { e.preventDefault(); setPicture(file, 'pasted picture') }
  })
}

async function findCamera() {
  try {
    const all = await navigator.mediaDevices.enumerateDevices()
    $('camera').hidden = !all.some((d) => d.kind === 'videoinput')
  } catch { $('camera').hidden = true }
}

async function openCamera() {
  let film
  try {
    film = await navigator.mediaDevices.getUserMedia({ video: { facingMode: 'environment' } })
  } catch (e) {
    fail('camera: ' + e.message)
    return
  }
  const box = $('viewfinder')
  $('video').srcObject = film
  box.showModal()
  const stop = () => film.getTracks().forEach((t) => t.stop())
  box.onclose = stop
  $('leave').onclick = () => box.close()
  $('shoot').onclick = () => {
    const v = $('video'), c = document.createElement('canvas')
    c.width = v.videoWidth
    c.height = v.videoHeight
    c.getContext('2d').drawImage(v, 0, 0)
    c.toBlob((b) => setPicture(b, 'camera'), 'image/jpeg', 0.92)
    box.close()
  }
}

// Asking

function request(side, question) {
  const method = $('method-' + side).value
  const content = []
  if (picture) content.push({ type: 'image_url', image_url: { url: picture.url } })
  content.push({ type: 'text', text: question })
  const restore = { report: 'groups', base: method }
  if (method !== 'none') restore.n_vis = Number($('tokens-' + side).value)
  return { messages: [{ role: 'user', content }], stream: true, stream_options: { include_usage: true }, restore }
}

// events yields the chunks of a stream; comments are skipped.
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) throw new Refused('the answer was cut off')
    rest += value
    for (let end; (end = rest.indexOf('\n\n')) >= 0;) {
      const event = rest.slice(0, end)
      rest = rest.slice(end + 2)
      if (!event.startsWith('data: ')) continue
      if (event === 'data: [DONE]') return
      yield JSON.parse(event.slice(6))
    }
  }
}

async function ask() {
  const question = $('question').value.trim()
  if (!model) return fail('the model is not loaded yet')
  if (!question && !picture) return fail('Choose a picture or write a question first.')
  fail('')
  running = new AbortController()
  const { signal } = running
  $('ask').textContent = 'Stop'
  const both = $('compare').checked ? sides : ['a']
  const asked = picture
  const text = question || 'Describe the image.'
  try {
    const answers = await Promise.all(both.map((side) => answer(side, text, signal)))
    remember(text, answers[0], asked)
  } catch (e) {
    if (e.name !== 'AbortError') fail(e.message)
  } finally {
    running.abort()
    running = null
    $('ask').textContent = 'Ask'
    for (const side of sides) $('answer-' + side).setAttribute('aria-busy', 'false')
  }
}

async function answer(side, question, signal) {
  const log = $('answer-' + side)
  log.textContent = ''
  log.setAttribute('aria-busy', 'true')
  for (const part of ['summary-', 'overlay-', 'times-']) $(part + side).replaceChildren()
  $('overlay-' + side).hidden = $('times-' + side).hidden = true
  const reply = await api('/v1/chat/completions', request(side, question), signal)
  let text = ''
  for await (const chunk of events(reply)) {
    if (chunk.error) throw new Refused(chunk.error.message)
    const piece = chunk.choices[0]?.delta?.content
    if (piece) {
      text += piece
      log.textContent = text
    }
    if (chunk.timings) finish(side, chunk)
  }
  log.setAttribute('aria-busy', 'false')
  return text
}

function finish(side, chunk) {
  const { timings: t, restore: r, usage: u } = chunk
  measure(t, r.images.length)
  const parts = []
  if (r.images.length) {
    const v = r.visual_tokens
    parts.push(v.kept === v.before ? `${v.before} visual tokens` : `${v.before} → ${v.kept + v.merged} visual tokens`)
  }
  parts.push(`first token ${time(t.ttft_ms)}`)
  if (t.predicted_per_second > 0) parts.push(`${Math.round(t.predicted_per_second)} tokens/s`)
  const cache = r.images[0]?.cache
  if (cache && cache !== 'none') parts.push('from the cache: ' + cache)
  else if (u?.prompt_tokens_details.cached_tokens) parts.push(`${u.prompt_tokens_details.cached_tokens} tokens from the cache`)
  $('summary-' + side).textContent = parts.join(' · ')
  stageTimes(side, t)
  if (r.images.length) overlay(side, r.images[0])
}

const svg = (name, attributes = {}) => {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v)
  return e
}

const element = (name, attributes = {}, ...children) => {
  const e = document.createElement(name)
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v)
  e.append(...children)
  return e
}

function stageTimes(side, t) {
  const rows = [['Prepare', t.prepare_ms], ['Encode', t.encode_ms], ['Select', t.select_ms], ['Merge', t.merge_ms],
    ['Prefill', t.prompt_ms], ['First token', t.ttft_ms], ['Decode', t.predicted_ms]]
  const most = Math.max(...rows.map((r) => r[1]), 1e-9)
  const name = 'Stage times' + (side === 'b' ? ' B' : '')
  const table = element('table', { 'aria-label': name }, element('caption', {}, name))
  const body = element('tbody')
  for (const [stage, ms] of rows) {
    const bar = svg('svg', { viewBox: '0 0 100 4', preserveAspectRatio: 'none', 'aria-hidden': 'true' })
    bar.append(svg('rect', { width: Math.max(0.3, 100 * ms / most), height: 4, rx: 1 }))
    body.append(element('tr', {}, element('th', { scope: 'row' }, stage), element('td', { class: 'bar' }, bar), element('td', {}, time(ms))))
  }
  table.append(body)
  $('times-' + side).replaceChildren(table)
  $('times-' + side).hidden = false
}

// Overlay: every row that the decoder got, drawn over the patches that it stands for.

function overlay(side, image) {
  const box = $('overlay-' + side)
  const total = image.kept + image.merged
  if (!image.grid || !picture) return
  const { rows, cols } = image.grid
  const name = `Kept and merged tokens${side === 'b' ? ' B' : ''}: ${image.kept} kept, ${image.merged} merged of ${image.tokens}`
  // Units are the picture's pixels; cells are drawn over the part that the grid covers.
  const a = image.area ?? { x: 0, y: 0, width: image.width, height: image.height }
  const root = svg('svg', { viewBox: `0 0 ${image.width} ${image.height}`, role: 'img', 'aria-label': name, tabindex: 0, class: 'grow' })
  root.append(svg('image', { href: picture.url, width: image.width, height: image.height, preserveAspectRatio: 'none' }))
  const grid = svg('g', { transform: `translate(${a.x} ${a.y}) scale(${a.width / cols} ${a.height / rows})` })
  root.append(grid)
  const seen = new Set(image.groups.flatMap((g) => g.members))
  const dropped = []
  for (let i = 0; i < rows * cols; i++) if (!seen.has(i)) dropped.push(i)
  if (dropped.length) grid.append(svg('path', { class: 'veil', d: cells(dropped, cols) }))
  const whole = total === image.tokens
  const groups = whole ? [] : image.groups.map((g, i) => {
    const single = g.kept && g.members.length === 1
    const node = svg('g', { class: 'group' + (single ? ' kept' : ''), tabindex: -1 })
    const fill = svg('path', { class: 'fill', d: cells(g.members, cols) })
    const edge = svg('path', { class: 'edge', d: outline(g.members, cols) })
    if (!single) {
      const hue = Math.round(i * 137.508) % 360 // neighbours in the list differ most
      fill.setAttribute('fill', `hsl(${hue} 80% 60% / .3)`)
      edge.setAttribute('stroke', `hsl(${hue} 85% 45%)`)
    }
    node.style.animationDelay = 8 * i + 'ms'
    node.append(fill, edge)
    grid.append(node)
    return { node, n: g.members.length }
  })
  lightUp(root, groups)
  const legend = element('p', { class: 'legend' }, whole ? 'Every token is read as it is.'
    : 'White frame: kept as it is. One colour: patches that share one token.' + (dropped.length ? ' Dark: not read.' : ''))
  box.replaceChildren(root, legend)
  box.hidden = false
}

// cells covers patches, a run of a row at a time.
function cells(members, cols) {
  const on = new Set(members)
  let d = ''
  for (const m of on) {
    const x = m % cols, y = Math.floor(m / cols)
    if (x > 0 && on.has(m - 1)) continue
    let w = 1
    while (x + w < cols && on.has(m + w)) w++
    d += `M${x} ${y}h${w}v1h${-w}z`
  }
  return d
}

// outline is the border between patches of a group and the others.
function outline(members, cols) {
  const on = new Set(members)
  let d = ''
  for (const m of on) {
    const x = m % cols, y = Math.floor(m / cols)
    if (!on.has(m - cols)) d += `M${x} ${y}h1`
    if (!on.has(m + cols)) d += `M${x} ${y + 1}h1`
    if (x === 0 || !on.has(m - 1)) d += `M${x} ${y}v1`
    if (x === cols - 1 || !on.has(m + 1)) d += `M${x + 1} ${y}v1`
  }
  return d
}

// lightUp shows what a group stands for, on hover, on focus, and with the arrow keys.
function lightUp(root, groups) {
  if (!groups.length) return
  const tip = $('tip')
  let at = -1
  const dark = () => {
    root.classList.remove('lit')
    if (at >= 0) groups[at].node.classList.remove('on')
    at = -1
    tip.hidden = true
  }
  const light = (i, x, y) => {
    dark()
    at = i
    const { node, n } = groups[i]
    root.classList.add('lit')
    node.classList.add('on')
    tip.textContent = n === 1 ? '1 patch, one token' : `${n} patches, one token`
    tip.hidden = false
    const r = node.getBoundingClientRect()
    const left = (x ?? r.x + r.width / 2) + 12, top = (y ?? r.y + r.height / 2) + 14
    tip.style.left = Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 4)) + 'px'
    tip.style.top = Math.max(4, Math.min(top, innerHeight - tip.offsetHeight - 4)) + 'px'
  }
  groups.forEach((g, i) => {
    g.node.addEventListener('pointermove', (e) => light(i, e.clientX, e.clientY))
    g.node.addEventListener('focus', () => light(i))
  })
  const merged = Math.max(0, groups.findIndex((g) => g.n > 1))
  root.addEventListener('pointerleave', dark)
  root.addEventListener('focus', () => light(merged))
  root.addEventListener('blur', dark)
  root.addEventListener('keydown', (e) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key]
    if (step) {
      e.preventDefault()
      light(((at < 0 ? merged : at + step) + groups.length) % groups.length)
    } else if (e.key === 'Escape') dark()
  })
  root.setAttribute('aria-describedby', 'tip')
}

// History

function remember(question, text, asked) {
  const list = kept.get('history', [])
  list.unshift({ question, text, thumb: asked?.thumb ?? '', at: Date.now() })
  kept.set('history', list.slice(0, 50))
  showHistory()
}

function showHistory() {
  const list = kept.get('history', [])
  $('no-history').hidden = list.length > 0
  $('clear').disabled = list.length === 0
  $('history').replaceChildren(...list.map((h) => {
    const what = element('span', { class: 'what' }, element('span', {}, h.question), element('span', { class: 'a' }, h.text))
    const button = element('button', { type: 'button', title: 'Ask this again' })
    if (h.thumb) button.append(element('img', { src: h.thumb, alt: '' }))
    button.append(what)
    button.onclick = () => {
      $('question').value = h.question
      $('question').focus()
    }
    return element('li', {}, button)
  }))
}

// Wiring

$('choose').onclick = () => $('file').click()
$('file').onchange = () => { setPicture($('file').files[0]); $('file').value = '' }
$('camera').onclick = openCamera
$('example').onclick = async () => {
  await setPicture(await (await fetch('/assets/example.jpg')).blob(), 'example')
  if (!$('question').value) $('question').value = 'Describe the image.'
}
$('ask').onclick = () => running ? running.abort() : ask()
$('question').addEventListener('keydown', (e) => {
  if (e.key !== 'Enter' || e.shiftKey || e.isComposing) return
  e.preventDefault()
  if (!running) ask()
})
for (const side of sides) {
  $('tokens-' + side).addEventListener('input', () => { begun = true; show(side); predict() })
  $('method-' + side).addEventListener('change', () => {
    begun = true
    const slider = $('tokens-' + side)
    if (slider.disabled && $('method-' + side).value !== 'none') slider.value = Math.min(64, slider.max)
    show(side)
    predict()
  })
}
$('compare').addEventListener('change', () => {
  const on = $('compare').checked
  $('compare').setAttribute('aria-checked', on)
  $('set-b').hidden = $('result-b').hidden = !on
  predict()
})
$('clear').onclick = () => { kept.set('history', []); showHistory() }
$('key-save').onclick = () => { session.set('key', $('key').value.trim()); loadModel() }
$('key').addEventListener('keydown', (e) => { if (e.key === 'Enter') $('key-save').click() })

acceptDrops()
findCamera()
showHistory()
loadModel().then(() => picture && count(picture))

// How the next question's pictures are read: tokens and method of A and B, and what that will cost.

import { local, session } from './store.js'
import { shown } from './conversation.js'
import { $, element, megabytes, time } from './dom.js'

const sides = ['a', 'b']
const question = 60, followUp = 20, answer = 64 // tokens that a prediction assumes

let model = null, touched = { a: false, b: false }
let speed = null // what the server and the answers measured
const known = new Set(session.get('read', [])) // by picture and reading: the server keeps what it read

const capital = (s) => s[0].toUpperCase() + s.slice(1)
const lower = (s) => s[0].toLowerCase() + s.slice(1)
const methods = () => model?.restore.about_methods ?? model?.restore.methods.map((name) => ({ name })) ?? []
const method = (name) => methods().find((m) => m.name === name)

// takesNumber says whether a method takes a number of visual tokens.
export const takesNumber = (name) => method(name)?.budget ?? name !== 'none'

export function setModel(m) {
  model = m
  speed = { ...m.restore.predict }
  for (const side of sides) {
    const select = $('method-' + side), value = select.value
    select.replaceChildren(...methods().map((x) => element('option', {
      value: x.name, disabled: x.least === 0, title: (x.summary || x.title) + (x.least === 0 ? ' Not with this model.' : ''),
    }, x.name)))
    if (touched[side] && method(value)) select.value = value
  }
}

// budget is what the server does when a request says nothing.
function budget(tokens) {
  const d = model.defaults.restore ?? {}
  if ((d.base ?? 'none') === 'none') return tokens
  const n = typeof d.n_vis === 'number' ? d.n_vis : d.keep_ratio ? Math.round(d.keep_ratio * tokens) : tokens
  return Math.max(1, Math.min(n, tokens))
}

// reading is the setting of a side: { base, tokens }.
export const reading = (side) => ({ base: $('method-' + side).value, tokens: Number($('tokens-' + side).value) })

export const comparing = () => $('compare').checked

// fit fits the sliders to the pictures, and shows their values.
export function fit(conversation) {
  if (!model) return
  const counts = shown(conversation).map((p) => p.tokens).filter(Boolean)
  const most = counts.length ? Math.max(...counts) : model.restore.visual_tokens ?? 576
  for (const side of sides) {
    const slider = $('tokens-' + side), select = $('method-' + side)
    if (!touched[side]) select.value = side === 'b' ? 'none' : model.defaults.restore?.base ?? 'none'
    const fixed = !takesNumber(select.value)
    const value = fixed || (!touched[side] && side === 'b') ? most : touched[side] ? slider.value : budget(most)
    slider.max = most
    slider.min = Math.max(1, Math.min(method(select.value)?.least ?? 1, most))
    slider.value = value
    slider.disabled = fixed
    const text = `${slider.value} of ${most}`
    slider.setAttribute('aria-valuetext', text)
    $('value-' + side).textContent = text
    $('does-' + side).textContent = `${select.value}: ${lower(method(select.value)?.summary || method(select.value)?.title || 'a method of this server')}`
  }
  $('compare').setAttribute('aria-checked', comparing())
  $('set-b').hidden = !comparing()
  $('set-a').classList.toggle('first', comparing())
  predict(conversation)
}

const mark = (picture, how) => [picture.print, how.base, how.base === 'none' ? '' : how.tokens].join()

// keep remembers that the server has read pictures.
export const keep = (pictures, how) => {
  for (const p of pictures) known.add(mark(p, how))
  session.set('read', [...known].slice(-500))
}

// readByDefault remembers that the server read a picture as it does when a request says nothing.
export const readByDefault = (picture) =>
  keep([picture], { base: model.defaults.restore?.base ?? 'none', tokens: budget(picture.tokens) })

// servesAll says whether what a side's method reads of a picture serves every question.
export const servesAll = ({ base }) => !method(base)?.each_question

// learn remembers what an answer read and how fast it was.
export function learn(pictures, how, t) {
  keep(pictures, how)
  const mix = (old, value) => old > 0 ? (old + value) / 2 : value
  if (t.prompt_n > 8) speed.token_ms = mix(speed.token_ms, t.prompt_per_token_ms)
  if (t.encode_ms > 0) speed.encode_ms = mix(speed.encode_ms, (t.prepare_ms + t.encode_ms + t.select_ms + t.merge_ms) / pictures.length)
}

// forget is for a server that was away: what it kept may be gone.
export function forget() {
  known.clear()
  session.set('read', [])
}

// expected is what the next question costs on a side: { fresh, pictures, ms, bytes }, fresh being the
// number of pictures that are not read yet. Without pictures it is what one would cost.
export function expected(conversation, side) {
  const how = reading(side), pictures = shown(conversation)
  const fresh = pictures.length ? pictures.filter((p) => !known.has(mark(p, how))) : [{}]
  const rows = (list) => list.reduce((sum, p) => sum + Math.min(how.tokens, p.tokens ?? how.tokens), 0)
  const text = fresh.length ? question : followUp
  const before = conversation.turns.at(-1)?.a.usage?.total_tokens ?? 0
  return {
    fresh: fresh.length, pictures: pictures.length,
    ms: fresh.length * speed.encode_ms + (rows(fresh) + text) * speed.token_ms,
    bytes: (Math.max(before, rows(pictures.length ? pictures : fresh)) + text + answer) * (speed.kv_bytes ?? 0),
  }
}

function predict(conversation) {
  const say = (side) => {
    const e = expected(conversation, side)
    const read = e.pictures && !e.fresh ? `, ${e.pictures > 1 ? 'pictures' : 'picture'} already read` : e.pictures ? '' : ', with a picture'
    return `first token in about ${time(e.ms)}, ${megabytes(e.bytes)} of memory${read}`
  }
  $('prediction').replaceChildren(...comparing()
    ? [element('span', {}, 'A: ', say('a')), element('span', {}, 'B: ', say('b'))] : [capital(say('a'))])
}

// Settings.

const numbers = { temperature: 'Temperature', longest: 'Longest answer', seed: 'Seed' }

export const systemText = () => $('system').value.trim()

// settings are those that are set; a number out of its range is an error in words.
export function settings() {
  const out = { system: systemText() }
  for (const [name, label] of Object.entries(numbers)) {
    const input = $(name)
    const v = input.validity
    if (v.badInput || v.rangeUnderflow || v.rangeOverflow || (v.stepMismatch && name !== 'temperature')) {
      $('settings').open = true
      input.focus()
      throw new Error(`${label}: ${input.validationMessage || 'not a number that can be used.'}`)
    }
    if (input.value !== '') out[name] = Number(input.value)
  }
  return out
}

export function keepSettings() {
  const saved = local.get('settings', {})
  for (const name of ['system', ...Object.keys(numbers)]) {
    if (typeof saved[name] === 'string') $(name).value = saved[name]
    $(name).addEventListener('input', () => {
      const all = Object.fromEntries(['system', ...Object.keys(numbers)].map((n) => [n, $(n).value]))
      local.set('settings', all)
    })
  }
}

// followControls calls change when something is set.
export function followControls(change) {
  for (const side of sides) {
    $('tokens-' + side).addEventListener('input', () => {
      touched[side] = true
      change()
    })
    $('method-' + side).addEventListener('change', () => {
      const slider = $('tokens-' + side)
      if (slider.disabled) slider.value = budget(Number(slider.max)) < slider.max ? budget(Number(slider.max)) : Math.ceil(slider.max / 9)
      touched[side] = true
      change()
    })
  }
  $('compare').addEventListener('change', change)
}

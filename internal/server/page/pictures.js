// The region Picture: the pictures that the model is shown, with the overlay of an answer.

import { api } from './api.js'
import { dataURL, id, objectURL, shown } from './conversation.js'
import { $, button, element, many } from './dom.js'
import { drawn, kinds, overlay, sentence } from './overlay.js'
import { noPicture, tooFine, tooLarge } from './problems.js'

// formats are those that the server reads, by their first bytes.
const formats = [
  ['image/png', /^\x89PNG\r\n\x1a\n/], ['image/jpeg', /^\xff\xd8\xff/], ['image/gif', /^GIF8[79]a/], ['image/webp', /^RIFF[^]{4}WEBP/], ['image/bmp', /^BM/],
]

// read makes a picture of a file, or says why it is none. model is the server's, null if not known.
export async function read(file, model) {
  const name = file.name || 'pasted picture'
  const most = model?.limits.max_image_bytes ?? Infinity
  if (file.size > most) throw tooLarge(name, file.size, most)
  const head = String.fromCharCode(...new Uint8Array(await file.slice(0, 12).arrayBuffer()))
  const format = formats.find(([, begins]) => begins.test(head))?.[0]
  let img
  try {
    img = await decoded(file)
  } catch { throw noPicture(name) }
  const pixels = img.naturalWidth * img.naturalHeight
  if (pixels > (model?.limits.max_image_pixels ?? Infinity)) throw tooFine(name, img, model.limits.max_image_pixels)
  const blob = format ? new Blob([file], { type: format }) : await converted(img, name)
  return { id: id(), name, blob, width: img.naturalWidth, height: img.naturalHeight, print: await print(blob) }
}

async function decoded(blob) {
  const img = new Image()
  img.src = objectURL(blob)
  await img.decode()
  return img
}

// converted is a picture that the browser shows and the server does not read, such as AVIF, as PNG.
async function converted(img, name) {
  const c = element('canvas', { width: img.naturalWidth, height: img.naturalHeight })
  c.getContext('2d').drawImage(img, 0, 0)
  const blob = await new Promise((done) => c.toBlob(done, 'image/png'))
  if (!blob) throw noPicture(name)
  return blob
}

// print tells pictures apart: a checksum of some of the bytes and their number.
async function print(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer())
  let h = 2166136261
  for (let i = 0; i < bytes.length; i += Math.ceil(bytes.length / 65536)) h = Math.imul(h ^ bytes[i], 16777619)
  return `${bytes.length}.${h >>> 0}`
}

// count finds how many tokens a picture has. Where that depends on the picture the server must tell: it
// reads the picture as by default, so that the first question need not wait for it. It refuses
// pictures that it cannot read. count returns whether the picture was read.
export async function count(picture, model) {
  picture.tokens = model.restore.visual_tokens
  if (picture.tokens) return false
  const content = [{ type: 'image_url', image_url: { url: await dataURL(picture.blob) } }]
  const reply = await (await api('tokenize', { messages: [{ role: 'user', content }] })).json()
  picture.tokens = reply.restore.images[0].tokens
  return true
}

// showPictures draws the region. answer is the one whose tokens are laid over, or null.
export function showPictures(conversation, answer, remove) {
  const list = shown(conversation)
  $('easel').classList.toggle('empty', !list.length)
  $('drop').hidden = list.length > 0
  $('pictures').classList.toggle('several', list.length > 1)
  const needs = { kept: false, merged: false, dropped: false }
  $('pictures').replaceChildren(...list.map((p, i) => {
    const image = answer?.images?.[answer.pictures.indexOf(p.id)]
    if (drawn(image)) for (const [kind, is] of Object.entries(kinds(image))) needs[kind] ||= is
    return entry(p, i + 1, image, () => remove(p))
  }))
  for (const [kind, is] of Object.entries(needs)) $('key-' + kind).hidden = !is
  const any = Object.values(needs).includes(true)
  if (!any) $('key-kept').hidden = $('key-merged').hidden = false // they keep their place
  $('easel').classList.toggle('plain', !any)
  showTokens()
}

function entry(picture, number, image, remove) {
  const box = element('div', { class: 'frame' },
    element('img', { src: objectURL(picture.blob), alt: `Picture ${number}: ${picture.name}` }),
    drawn(image) ? overlay(number, image) : null,
    button('×', remove, { class: 'remove', 'aria-label': `Remove picture ${number}`, title: `Remove picture ${number}` }))
  box.style.setProperty('--ratio', picture.width / picture.height)
  return element('li', {}, element('figure', {}, box, element('figcaption', { dir: 'auto' }, ...caption(picture, number, image))))
}

function caption(picture, number, image) {
  if (!image) {
    const facts = [picture.name, `${picture.width} × ${picture.height}`]
    if (picture.tokens) facts.push(many(picture.tokens, 'visual token'))
    return [facts.join(' · ')]
  }
  const lines = [element('span', { dir: 'ltr' }, sentence(number, image))]
  if (!drawn(image)) lines.push(element('span', { dir: 'ltr' }, ' This model does not say where its tokens are in the picture, so they are not drawn.'))
  return lines
}

// showTokens lays the overlays over the pictures or takes them away.
export function showTokens() {
  $('show').setAttribute('aria-checked', $('show').checked)
  document.documentElement.classList.toggle('bare', !$('show').checked)
}

// acceptDrops takes files that are dropped or pasted anywhere on the page.
export function acceptDrops(take) {
  let inside = 0
  const over = (on) => $('picture').classList.toggle('over', on)
  const files = (e) => [...e.dataTransfer?.types ?? []].includes('Files')
  window.addEventListener('dragenter', (e) => { if (files(e)) over(++inside > 0) })
  window.addEventListener('dragleave', (e) => { if (files(e)) over(--inside > 0) })
  window.addEventListener('dragover', (e) => e.preventDefault())
  window.addEventListener('drop', (e) => {
    e.preventDefault() // or the browser would leave the page
    over(false)
    inside = 0
    if (e.dataTransfer.files.length) take([...e.dataTransfer.files])
  })
  document.addEventListener('paste', (e) => {
    const data = e.clipboardData
    if (!data?.files.length || data.types.includes('text/plain')) return
    e.preventDefault()
    take([...data.files])
  })
}

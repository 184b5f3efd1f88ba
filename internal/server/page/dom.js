// Elements, and numbers in words.

export const $ = (id) => document.getElementById(id)

const make = (create) => (name, attributes = {}, ...children) => {
  const e = create(name)
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') e[key] = value
    else if (value !== false && value != null) e.setAttribute(key, value === true ? '' : value)
  }
  e.append(...children.filter((c) => c != null && c !== false))
  return e
}

// element makes an element of HTML. Text is text: nothing is parsed.
export const element = make((name) => document.createElement(name))

export const svg = make((name) => document.createElementNS('http://www.w3.org/2000/svg', name))

export const button = (text, onclick, attributes = {}) =>
  element('button', { type: 'button', onclick, ...attributes }, text)

// disclosure is a part that opens. Its summary says that it is a button, which it is.
export const disclosure = (text, ...children) =>
  element('details', {}, element('summary', { role: 'button' }, text), ...children)

export function time(ms) {
  if (ms >= 59950) return `${Math.floor(Math.round(ms / 1000) / 60)} min ${Math.round(ms / 1000) % 60} s`
  if (ms >= 1000) return (ms / 1000).toFixed(1) + ' s'
  return ms >= 10 ? Math.round(ms) + ' ms' : ms.toFixed(1) + ' ms'
}

export function megabytes(bytes) {
  const mb = bytes / 1e6
  return mb.toFixed(mb < 10 ? 2 : 0) + ' MB'
}

export const many = (n, one, more = one + 's') => `${n} ${n === 1 ? one : more}`

// copy puts a text on the clipboard. Pages without TLS on other machines have no navigator.clipboard.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text)
    return
  } catch { /* the old way, then */ }
  const focus = document.activeElement
  const area = element('textarea', { class: 'away', 'aria-hidden': 'true', tabindex: -1 })
  area.value = text
  document.body.append(area)
  area.select()
  document.execCommand('copy')
  area.remove()
  focus?.focus()
}

// copyButton copies what text returns, and says so for a moment.
export function copyButton(name, text) {
  const label = element('span', {}, 'Copy')
  return element('button', {
    type: 'button', class: 'small', 'aria-label': name, onclick: async () => {
      await copy(text())
      label.textContent = 'Copied'
      setTimeout(() => { label.textContent = 'Copy' }, 1500)
    },
  }, label)
}

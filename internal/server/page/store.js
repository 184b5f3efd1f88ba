// What this browser keeps: settings, the key of this tab, and conversations.

const store = (kind) => ({
  get(key, none) {
    try { return JSON.parse(kind().getItem('restore.' + key)) ?? none } catch { return none }
  },
  set(key, value) {
    try { kind().setItem('restore.' + key, JSON.stringify(value)) } catch { /* full or forbidden */ }
  },
})

export const local = store(() => localStorage), session = store(() => sessionStorage)

// Conversations lie in IndexedDB, because they hold their pictures. mostBytes limits all of them;
// the ones that were used least recently leave first.
const mostBytes = 200e6

const request = (r) => new Promise((done, failed) => {
  r.onsuccess = () => done(r.result)
  r.onerror = () => failed(r.error)
})

let opened

function open() {
  opened ??= new Promise((done, failed) => {
    const r = indexedDB.open('restore', 1)
    r.onupgradeneeded = () => r.result.createObjectStore('conversations', { keyPath: 'id' })
    r.onsuccess = () => done(r.result)
    r.onerror = () => failed(r.error)
  })
  return opened
}

async function table(mode) {
  return (await open()).transaction('conversations', mode).objectStore('conversations')
}

export const conversations = {
  // all returns every conversation, the last used first.
  async all() {
    const list = await request((await table('readonly')).getAll())
    return list.sort((a, b) => b.at - a.at)
  },

  async save(conversation) {
    await request((await table('readwrite')).put(conversation))
    let room = mostBytes
    for (const c of await conversations.all()) {
      room -= bytes(c)
      if (room < 0 && c.id !== conversation.id) await conversations.remove(c.id)
    }
  },

  async remove(id) { await request((await table('readwrite')).delete(id)) },
}

function bytes(conversation) {
  const pictures = conversation.pictures.reduce((sum, p) => sum + p.blob.size, 0)
  return pictures + JSON.stringify(conversation.turns).length
}

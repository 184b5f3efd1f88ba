// What went wrong and what to do, in words for a person.

import { Away, Broken, Refused, key } from './api.js'
import { megabytes } from './dom.js'

const unreadable = 'This picture cannot be read. Save it as PNG or JPEG and choose it again.'

// byCode maps the server's codes to words; those with again can be tried again as they are.
const byCode = {
  invalid_api_key: () => ({ say: key.get() ? 'The server does not know this API key. Check it, then ask again.' : 'This server wants an API key. Type it below, then ask again.' }),
  image_file_too_large: () => ({ say: 'The picture is too large for this server. Save it smaller, or start the server with a larger --max-image-mb.' }),
  image_too_large: () => ({ say: 'The picture has more pixels than this server takes. Make it smaller, or start the server with a larger --max-image-pixels.' }),
  unsupported_image_media_type: () => ({ say: unreadable }),
  image_parse_error: () => ({ say: unreadable }),
  empty_image_file: () => ({ say: unreadable }),
  too_many_images: (model) => ({ say: `These are too many pictures: the server takes ${model?.limits.max_images ?? 'fewer'} in a conversation. Remove some, or start a new conversation.` }),
  request_too_large: () => ({ say: 'The pictures of this conversation are too large together. Remove some, or start a new conversation.' }),
  context_length_exceeded: () => ({ say: 'The conversation has become longer than the model can read. Remove a picture, or start a new conversation.' }),
  queue_full: () => ({ say: 'The server is busy with other questions. Try again in a moment.', again: true }),
  loading: () => ({ say: 'The model is still being loaded. Try again in a moment.', again: true }),
  shutting_down: () => ({ say: 'The server is shutting down. Try again when it is back.', again: true }),
  request_timeout: () => ({ say: 'Sending the question took too long. Try again.', again: true }),
  deadline_exceeded: () => ({ say: 'The answer took longer than this server allows. Ask for a shorter one, or start the server with a larger --request-timeout.', again: true }),
  internal_error: () => ({ say: 'Something went wrong in the server. Its log says more.', again: true }),
  origin_not_allowed: () => ({ say: `The server does not answer pages from ${location.origin}. Start it with --cors-origins ${location.origin}.` }),
  host_not_allowed: () => ({ say: `The server does not answer to the name ${location.hostname}. Start it with --allowed-hosts ${location.hostname}.` }),
}

// byField names the control of a field that was refused.
const byField = [
  [/n_vis/, 'Visual tokens: the method does not take this number. Choose another number, or another method.'],
  [/base/, 'Method: this one does not work with this model. Choose another one.'],
  [/temperature/, 'Settings: the temperature is refused. Choose one from 0 to 2.'],
  [/max_(completion_)?tokens/, 'Settings: the longest answer is refused. Choose at least 1, or leave it empty.'],
  [/seed/, 'Settings: the seed is refused. Choose a whole number, or leave it empty.'],
]

// explain returns { say, again, details } for an error.
export function explain(e, model) {
  const details = e.message
  if (e instanceof Away) return { say: 'The server cannot be reached. Nothing is lost: try again when it is back.', again: true, details }
  if (e instanceof Broken) return { say: 'The connection broke before the answer was complete.', again: true, details }
  if (!(e instanceof Refused)) return { say: e.message, details: e.details }
  const known = byCode[e.code]?.(model)
  if (known) return { ...known, details }
  const field = byField.find(([at]) => at.test(e.param ?? ''))
  return { say: field?.[1] ?? 'The server refused the question.', details }
}

// Unfit is a file that cannot be taken as a picture.
export class Unfit extends Error {
  constructor(say, details) {
    super(say)
    this.details = details
  }
}

export const noPicture = (name) => new Unfit(`${name} is no picture that can be read. Choose a PNG, JPEG, WebP, GIF or BMP file.`)

export const tooLarge = (name, size, most) => new Unfit(
  `${name} is too large: it has ${megabytes(size)}, this server takes ${megabytes(most)}. Save it smaller, or start the server with a larger --max-image-mb.`,
  `got ${size} bytes, want at most ${most}`)

export const tooFine = (name, { naturalWidth: w, naturalHeight: h }, most) => new Unfit(
  `${name} has too many pixels: ${w} × ${h}, this server takes ${Math.floor(most / 1e6)} million. Make it smaller, or start the server with a larger --max-image-pixels.`,
  `got ${w * h} pixels, want at most ${most}`)

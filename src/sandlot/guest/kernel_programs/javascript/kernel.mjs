// The kernel of JavaScript and TypeScript: runs cells in one global scope, with the Node.js (below: node) of the image and without further packages.
//
// The guest starts it as `node kernel.mjs FD`, or `node kernel.mjs typescript FD` for cells in TypeScript. FD is the socket to the guest. A message
// on the socket is a length of 4 bytes and a value in the encoding of protocol/values.py.
//
// Invariants:
// - A cell behaves like a line in node's REPL or in a browser's console (replMode of V8, through node:inspector): const, let and class persist
//   and may be declared again, await works at the top level, and the value of the last expression is the result. If this value is a promise, the
//   result is what the promise resolves to.
// - A cell ends when its code has run, its result is settled, and the one-shot timers that it has started have fired, including timers that such
//   timers start. Intervals, unreferenced timers, servers and other pending promises do not hold the cell.
// - An uncaught error or a rejection that nobody handles ends the cell that has started the failing code, with this error. After the end of the
//   cell, the error is printed as standard error of the cell. process.exit() ends the cell. None of these ends the kernel.
// - Intervals, servers and pending promises continue between cells. Their output belongs to the cell that has started them.
// - An interrupt ends a cell, even in an endless loop. The guest sends each interrupt as SIGINT and as a message. SIGINT ends child processes of
//   the cell. The message ends the cell itself: node handles signals only between turns of its event loop, but a separate thread reads messages.
// - TypeScript: types are removed and not checked. Lines and columns of errors are those of the cell, unless the cell has syntax that becomes other
//   code, such as enums.
// - An endless loop that begins in a later turn of the event loop, for example in a timer, cannot be ended, because terminating code there would
//   leave node's timers inconsistent. The guest then kills the kernel.

import { AsyncLocalStorage } from 'node:async_hooks';
import { Buffer } from 'node:buffer';
import fs from 'node:fs';
import inspector from 'node:inspector';
import module, { createRequire } from 'node:module';
import path from 'node:path';
import net from 'node:net';
import timers from 'node:timers';
import timersPromises from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import util from 'node:util';
import { promiseHooks } from 'node:v8';
import vm from 'node:vm';
import { MessageChannel, Worker, isMainThread, parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads';

const FD = isMainThread ? Number(process.argv.at(-1)) : workerData.fd;
const TYPESCRIPT = process.argv[2] === 'typescript';
const RESEND_MS = 250; // milliseconds after which a message that the main thread has not handled is sent to it again
const CHECK_MS = 20; // maximum number of milliseconds until a cell notices that one of its timers was cleared
const TEXT_LIMIT = 1024 * 1024; // maximum number of characters of a textual representation
const { stringify } = JSON;
const { entries } = Object;
const JSON_LIMIT = 64 * 1024; // maximum number of characters of the JSON representation that is added to plain objects and arrays
const PIECE = 256 * 1024; // maximum number of bytes of one output message
const DISPLAY = Symbol.for('sandlot.display'); // name of the method that returns the representations of an object: MIME type -> text or bytes
const LINES = 500; // maximum number of lines of a traceback; the last ones are kept
const LINE_CHARS = 2000; // maximum number of characters of a traceback line
const MESSAGE_LIMIT = 8 * 1024 * 1024; // maximum number of bytes of a message (protocol/connection.py)
const ITEMS_LIMIT = 100000; // maximum number of values in a message, nested values included (protocol/values.py)
const ITEM_LIMIT = 6 * 1024 * 1024; // maximum number of bytes of one representation
const BUNDLE_LIMIT = 7 * 1024 * 1024; // maximum number of bytes of all representations of one display
const MIME_TYPES = 64; // maximum number of representations of one display (protocol/schema.py)
const MIME_CHARS = 201; // maximum number of characters of a MIME type
const TOO_LARGE = '[left out, because it is too large]';
const UUIDS_AHEAD = 128; // maximum number of UUIDs that node has generated in advance (lib/internal/crypto/random.js)
const PARSER_MS = 10000; // milliseconds until a thread that parses TypeScript is given up
const INTEGERS_AHEAD = 1024; // maximum number of random integers that node has generated in advance (the same file)
// Functions of node as they were before cells could replace them.
const { stripTypeScriptTypes } = module;
const { clearTimeout, setImmediate, setInterval, setTimeout } = timers;
const then = Function.prototype.call.bind(Promise.prototype.then);
const slice = Function.prototype.call.bind(String.prototype.slice);

// -- values: the encoding of protocol/values.py -------------------------------------------------------------------------------------------

function encode(value, parts = []) {
  if (value === null || value === undefined) parts.push(Buffer.of(0xc0));
  else if (typeof value === 'boolean') parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === 'number') {
    const number = Buffer.alloc(9);
    if (Number.isSafeInteger(value)) number.writeBigInt64BE(BigInt(value), 1)
    else number.writeDoubleBE(value, 1);
    number[0] = Number.isSafeInteger(value) ? 0xd3 : 0xcb;
    parts.push(number);
  } else if (typeof value === 'string') {
    const raw = Buffer.from(value, 'utf8');
    parts.push(head(raw.length, 0xdb), raw);
  } else if (value instanceof Uint8Array) parts.push(head(value.length, 0xc6), value);
  else if (Array.isArray(value)) {
    parts.push(head(value.length, 0xdd));
    for (const item of value) encode(item, parts);
  } else {
    const pairs = entries(value);
    parts.push(head(pairs.length, 0xdf));
    for (const [key, item] of pairs) {
      encode(key, parts);
      encode(item, parts);
    }
  }
  return parts;
}

function head(size, code) {
  const raw = Buffer.alloc(5);
  raw[0] = code;
  raw.writeUInt32BE(size, 1);
  return raw;
}

// Returns the value that the bytes of a message of the guest encode.
function decode(raw) {
  let at = 0;
  const take = (size) => raw.subarray(at, (at += size));
  const number = (width) => (width ? take(width).readUIntBE(0, Math.min(width, 6)) : 0);
  const map = (size) => {
    const found = {};
    for (; size > 0; size -= 1) {
      const key = value();
      found[key] = value();
    }
    return found;
  };
  const list = (size) => Array.from({ length: size }, () => value());
  const text = (size) => take(size).toString('utf8');
  function value() {
    const code = raw[at];
    at += 1;
    if (code <= 0x7f) return code;
    if (code >= 0xe0) return code - 0x100;
    if (code <= 0x8f) return map(code - 0x80);
    if (code <= 0x9f) return list(code - 0x90);
    if (code <= 0xbf) return text(code - 0xa0);
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xc4 && code <= 0xc6) return Buffer.from(take(number(1 << (code - 0xc4))));
    if (code === 0xcb) return take(8).readDoubleBE(0);
    if (code >= 0xcc && code <= 0xce) return number(1 << (code - 0xcc));
    if (code === 0xcf) return Number(take(8).readBigUInt64BE(0));
    if (code >= 0xd0 && code <= 0xd2) return take(1 << (code - 0xd0)).readIntBE(0, 1 << (code - 0xd0));
    if (code === 0xd3) return Number(take(8).readBigInt64BE(0));
    if (code >= 0xd9 && code <= 0xdb) return text(number(1 << (code - 0xd9)));
    if (code === 0xdc || code === 0xdd) return list(number(2 << (code - 0xdc)));
    if (code === 0xde || code === 0xdf) return map(number(2 << (code - 0xde)));
    throw new Error(`the message contains code ${code}, which is not supported`);
  }
  return value();
}

// -- sending: in order and synchronously, so that a busy event loop does not delay output -------------------------------------------------

const pause = new Int32Array(new SharedArrayBuffer(4));
const { writeSync } = fs;

// Bytes of the message that is being sent, and how many of these bytes were sent already. If a cell is terminated during send(), the rest of the
// message is sent before the next message.
let raw = null;
let at = 0;

function send(message) {
  let made = framed(message);
  // Each item takes at least one byte, so only a message of more than ITEMS_LIMIT bytes can have too many items.
  if (made.length - 4 > MESSAGE_LIMIT || (made.length > ITEMS_LIMIT && items(message) > ITEMS_LIMIT)) made = framed(shortened(message));
  flush();
  at = 0;
  raw = made;
  flush();
}

function framed(message) {
  const made = Buffer.concat([Buffer.alloc(4), ...encode(message)]);
  made.writeUInt32BE(made.length - 4, 0);
  return made;
}

// Returns the number of keys and values in an object or array, including nested keys and values. The guest limits this number for each message.
function items(value) {
  if (value === null || typeof value !== 'object' || value instanceof Uint8Array) return 0;
  const pairs = entries(value);
  let number = pairs.length * (Array.isArray(value) ? 1 : 2);
  for (const pair of pairs) number += items(pair[1]);
  return number;
}

// Returns a short version of a message that exceeds the guest's limits. The short version has all required fields. If the kernel sent the long
// message, the guest would kill the kernel.
function shortened(message) {
  const short = {};
  for (const [name, item] of entries(message)) {
    if (typeof item === 'string') short[name] = slice(item, 0, LINE_CHARS);
    else if (item === null || typeof item !== 'object') short[name] = item;
  }
  if (message.event === 'display') short.data = { 'text/plain': TOO_LARGE };
  if (message.event === 'output') short.data = Buffer.from(TOO_LARGE);
  if (message.event === 'error') short.traceback = [TOO_LARGE];
  return short;
}

function flush() {
  while (raw !== null && at < raw.length) {
    try {
      at += writeSync(FD, raw, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') process.kill(process.pid, 'SIGKILL'); // the guest has closed the socket
      Atomics.wait(pause, 0, 0, 2); // wait 2 ms: the socket is full, and it is non-blocking because an event loop reads from it
    }
  }
  raw = null;
}

// -- cells ------------------------------------------------------------------------------------------------------------------------------

const owner = new AsyncLocalStorage(); // cell to which the output and errors of the running code belong, even after the cell has ended
const repeated = new AsyncLocalStorage(); // true in code that an interval has called
const session = new inspector.Session();
const waiting = [];
let running = null;
let last = null; // id of the last cell that was started
let count = 0;

class Exit extends Error {}

const cellName = () => `cell-${count}.${TYPESCRIPT ? 'ts' : 'js'}`; // name of the running cell in tracebacks

// Starts the cell of an `execute` message. If the request to terminate the previous cell takes effect late, it may terminate this function
// instead. The reading thread therefore passes the message again until acknowledge() was called.
function startCell({ number, cell, code, env, silent, store_history: keeps }) {
  if (cell !== last && keeps !== false && !silent) count += 1;
  const current = { id: cell, silent, before: [], timers: new Map(), pruneAt: 1000 };
  running = current;
  last = cell;
  send({ event: 'started', cell, count });
  try {
    setVariables(env, current.before);
    const expression = prepare(code, cellName());
    acknowledge(number);
    progress[1] = 1;
    owner.run(current, () => evaluate(current, expression));
    // Code that awaits settled promises continues now, in the same turn of the event loop: an endless `for (;;) await null` can be terminated.
    process._tickCallback?.();
    progress[1] = 0;
  } catch (error) {
    acknowledge(number);
    fail(current, error); // an earlier cell has broken a part of node that this program needs
  }
}

// Unsettled promises of cells. The promise of a cell is the first promise that its evaluation creates. If the garbage collector
// freed this promise before it is settled, the inspector would report that during the collection, and the process would end. The promise is
// therefore kept here until it is settled.
const pendingPromises = new Set();

function evaluate(current, expression) {
  let promise = null;
  const stop = promiseHooks.onInit((made) => {
    promise ??= made;
    stop();
  });
  try {
    session.post('Runtime.evaluate', { expression, replMode: true }, (error, response) => {
      pendingPromises.delete(promise);
      if (!error) onEvaluated(current, response);
    });
  } finally {
    stop();
    pendingPromises.add(promise);
  }
}

// Returns the JavaScript value that a RemoteObject of the inspector stands for.
function resolveRemote(remote) {
  if (remote.objectId === undefined) {
    if (remote.subtype === 'null') return null;
    const text = remote.unserializableValue;
    if (text === undefined) return remote.value;
    return remote.type === 'bigint' ? BigInt(text.slice(0, -1)) : Number(text);
  }
  let found;
  globalThis.__sandlot_run = (value) => {
    found = value;
  };
  const body = 'function () { "use strict"; __sandlot_run(this) }';
  session.post('Runtime.callFunctionOn', { objectId: remote.objectId, functionDeclaration: body });
  session.post('Runtime.releaseObject', { objectId: remote.objectId });
  return found;
}

function onEvaluated(current, { result, exceptionDetails }) {
  if (running !== current) return; // the cell was already reported as interrupted, but its code has continued
  if (exceptionDetails !== undefined) {
    fail(current, resolveRemote(exceptionDetails.exception ?? { type: 'undefined' }), exceptionDetails);
    return;
  }
  const value = resolveRemote(result);
  if (util.types.isPromise(value)) {
    owner.run(current, () => then(value, (settled) => finish(current, settled), (reason) => fail(current, reason)));
  } else finish(current, value);
}

// Shows the result of a cell and waits for the end of the cell, once microtasks are done and node has reported rejections that nobody handles.
function finish(current, value) {
  setImmediate(() => {
    if (running !== current) return;
    if (value !== undefined && !current.silent) owner.run(current, () => show(current.id, value, true));
    endAfterTimers(current);
  });
}

// Ends the cell when none of its one-shot timers is left.
function endAfterTimers(current) {
  if (running !== current) return;
  prune(current);
  if (current.timers.size === 0) {
    done(current, true);
    return;
  }
  let next = performance.now() + CHECK_MS;
  for (const due of current.timers.values()) if (due < next) next = due;
  setTimeout(endAfterTimers, Math.max(1, next - performance.now()), current);
}

// Forgets timers of a cell that have fired, were cleared or are unreferenced.
function prune(current) {
  // _destroyed is undocumented. Where node lacks it, cells do not wait for timers.
  for (const timer of current.timers.keys()) if (timer._destroyed !== false || !timer.hasRef()) current.timers.delete(timer);
  current.pruneAt = 2 * current.timers.size + 1000;
}

// Notes a one-shot timer that the running cell has started, with the time at which it fires.
function note(timer, delay) {
  const current = owner.getStore();
  if (current === undefined || current !== running || repeated.getStore()) return;
  current.timers.set(timer, performance.now() + (delay >= 1 ? delay : 1));
  if (current.timers.size > current.pruneAt) prune(current);
}

function done(current, ok) {
  current.timers.clear();
  restoreVariables(current.before);
  running = null;
  send({ event: 'done', cell: current.id, ok, count });
  if (waiting.length > 0) setImmediate(() => startCell(waiting.shift()));
}

// Sends the error of a cell to the guest. Texts are shortened, because the guest kills a kernel that sends a message above its limits.
function sendError(cell, name, value, traceback) {
  const lines = [];
  for (let at = Math.max(0, traceback.length - LINES); at < traceback.length; at += 1) lines[lines.length] = traceback[at].slice(0, LINE_CHARS);
  send({ event: 'error', cell, name: name.slice(0, LINE_CHARS), value: value.slice(0, TEXT_LIMIT), traceback: lines });
}

function interrupted(current) {
  progress[1] = 0;
  owner.enterWith(undefined); // the code of the cell was terminated before it could reset `owner`
  sendError(current.id, 'KeyboardInterrupt', '', ['KeyboardInterrupt']);
  done(current, false);
}

function fail(current, thrown, details) {
  if (running !== current || thrown instanceof Exit) return;
  const { name, value, traceback } = described(thrown);
  if (name === 'SyntaxError' && details?.scriptId !== undefined) traceback[traceback.length] = `    at ${cellName()}:${details.lineNumber + 1}:${details.columnNumber + 1}`;
  sendError(current.id, name, value, traceback);
  done(current, false);
}

// Returns name, text and traceback lines of a thrown value, which may be of any type. Reading its properties may throw another error.
function described(thrown) {
  try {
    if (util.types.isNativeError(thrown) || thrown instanceof Error) {
      const name = String(thrown.name);
      const value = String(thrown.message);
      const traceback = `${name}${value ? `: ${value}` : ''}`.split('\n');
      for (const line of String(thrown.stack ?? '').split('\n')) {
        if (/^\s+at /.test(line) && !/node:|\/javascript\/kernel\.mjs|\/sandlot\/import-global\.cjs/.test(line)) traceback[traceback.length] = line;
      }
      if (thrown.cause !== undefined) traceback[traceback.length] = `  [cause]: ${inspect(thrown.cause)}`;
      return { name, value, traceback };
    }
  } catch {
    return { name: 'Error', value: '(cannot be printed)', traceback: ['Error: (cannot be printed)'] };
  }
  return { name: 'Uncaught', value: inspect(thrown), traceback: [`Uncaught ${inspect(thrown)}`] };
}

function inspect(value) {
  try {
    return util.inspect(value).slice(0, TEXT_LIMIT);
  } catch (error) {
    return `(cannot be printed: ${error?.name})`;
  }
}

function show(cell, value, main) {
  const data = { 'text/plain': inspect(value) };
  try {
    if (typeof value?.[DISPLAY] === 'function') Object.assign(data, value[DISPLAY]());
    else if (isPlain(value)) {
      const text = stringify(value);
      if (text !== undefined && text.length <= JSON_LIMIT) data['application/json'] = text;
    }
  } catch {
    // the object's own representations failed: only text/plain is shown
  }
  const { kept, metadata } = bundle(data);
  send({ event: 'display', cell, data: kept, main, ...(entries(metadata).length > 0 ? { metadata } : {}) });
}

// Returns the representations that fit into one message, and metadata about those that do not fit. text/plain is cut; any other representation is
// kept or left out as a whole.
function bundle(data) {
  const kept = {};
  const metadata = {};
  const texts = [];
  let room = BUNDLE_LIMIT;
  let number = 0;
  for (const [mime, item] of [['text/plain', data['text/plain']], ...entries(data)]) {
    if (mime in kept || mime in metadata || mime.length > MIME_CHARS || number === MIME_TYPES) continue;
    const encoded = representation(mime, item);
    if (encoded === null) continue;
    number += 1;
    const size = typeof encoded === 'string' ? Buffer.byteLength(encoded) : encoded.byteLength;
    if (size <= ITEM_LIMIT && size <= room) {
      kept[mime] = encoded;
      room -= size;
    } else {
      metadata[mime] = { left_out_bytes: size };
      texts[texts.length] = `[${mime} of ${size} bytes was left out, because it is too large]`;
    }
  }
  if (texts.length > 0 && entries(kept).length === 0) kept['text/plain'] = texts.join('\n');
  return { kept, metadata };
}

// Returns a representation as the text or bytes to send; null if the value cannot be converted to JSON.
function representation(mime, item) {
  try {
    const made = typeof item === 'string' || item instanceof Uint8Array ? item : (stringify(item) ?? 'null');
    if (mime !== 'text/plain' || typeof made !== 'string' || made.length <= TEXT_LIMIT) return made;
    return `${slice(made, 0, TEXT_LIMIT)}\n[... cut after ${TEXT_LIMIT} of ${made.length} characters]`;
  } catch {
    return null; // JSON.stringify has failed, for example for an object that contains itself
  }
}

function isPlain(value) {
  return Array.isArray(value) || (value !== null && typeof value === 'object' && [Object.prototype, null].includes(Object.getPrototypeOf(value)));
}

// Sets the environment variables of a cell, and appends the name and the previous value of each variable to `before`.
function setVariables(env, before) {
  for (const name in env) {
    before[before.length] = [name, process.env[name]];
    process.env[name] = env[name];
  }
}

function restoreVariables(before) {
  for (const [name, value] of before) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
}

// -- imports ------------------------------------------------------------------------------------------------------------------------------

// Returns the code of a cell in the form that V8 evaluates. Import statements become calls of __sandlot_import, because a cell is not a module.
function prepare(source, name) {
  const code = TYPESCRIPT ? withoutTypes(source) : source;
  const bare = masked(code);
  let expression = code;
  if (/\bimport\b/.test(bare)) expression = replaced(code, bare);
  // Code such as `{ a: 1 }` could be a block or an object. As in a browser's console, it is read as an object if possible.
  if (/^\s*\{/.test(bare) && !/;\s*$/.test(bare) && compiles(`(async () => (${expression}\n))`)) expression = `(${expression}\n)`;
  return `${expression}\n//# sourceURL=${name}`;
}

// Returns TypeScript as JavaScript.
function withoutTypes(code) {
  if (stripTypeScriptTypes === undefined) throw new Error(`Node.js ${process.version} cannot run TypeScript. Use Node.js 22.13 or newer.`);
  try {
    return stripTypes(code);
  } catch (error) {
    // An object without parentheses: see prepare().
    if (/^\s*\{/.test(masked(code))) {
      try {
        return stripTypes(`(${code}\n)`);
      } catch {
        // the error of the code itself is reported
      }
    }
    throw syntaxError(error);
  }
}

// Replaces types by blanks, so that positions stay. Code with enums and other syntax that is more than types is written anew.
function stripTypes(code) {
  try {
    return parseTypeScript(code, 'strip');
  } catch (error) {
    if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
    return parseTypeScript(code, 'transform');
  }
}

// False once node's parser has failed for another reason than the syntax of its input. Code that is nested too deeply leaves the parser, which is a
// WebAssembly module, in an undefined state: it then refuses correct code as well. Each further cell is parsed in a thread, which has a new parser.
let isParserUsable = true;
const PARSER_MISSING = 'ERR_PARSER_MISSING';

function parseTypeScript(code, mode) {
  try {
    return isParserUsable ? stripTypeScriptTypes(code, { mode }) : parseInThread(code, mode);
  } catch (error) {
    if ([PARSER_MISSING, 'ERR_INVALID_TYPESCRIPT_SYNTAX', 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX'].includes(error.code)) throw error;
    isParserUsable = false;
    throw new SyntaxError('The code is nested too deeply for the TypeScript parser. Shorten expressions with many operators or brackets.');
  }
}

const PARSER = `
const { stripTypeScriptTypes } = require('node:module');
const { workerData } = require('node:worker_threads');
let result;
try {
  result = { text: stripTypeScriptTypes(workerData.code, { mode: workerData.mode }) };
} catch (error) {
  result = { error: { code: error.code, message: String(error.message), stack: String(error.stack) } };
}
workerData.port.postMessage(result);
Atomics.store(workerData.isDone, 0, 1);
Atomics.notify(workerData.isDone, 0);`;

function parseInThread(code, mode) {
  const { port1, port2 } = new MessageChannel();
  const isDone = new Int32Array(new SharedArrayBuffer(4));
  const options = { workerData: { code, mode, port: port2, isDone }, transferList: [port2], env: {}, stdout: true, stderr: true };
  const missing = { error: { code: PARSER_MISSING, message: 'The TypeScript parser could not be started. Free memory, or end a process of the sandbox.' } };
  let thread;
  try {
    thread = new Worker(PARSER, { eval: true, ...options });
    thread.on('error', () => {}); // without a handler, an error of the thread would be one of the cell
    Atomics.wait(isDone, 0, 0, PARSER_MS);
    const { text, error } = receiveMessageOnPort(port1)?.message ?? missing;
    if (error !== undefined) throw error;
    return text;
  } catch (error) {
    throw error.code === 'ERR_WORKER_INIT_FAILED' ? missing.error : error; // such as at the limit of processes
  } finally {
    port1.close();
    void thread?.terminate();
  }
}

// Returns an error of stripTypeScriptTypes as V8 would report it. The stack of this error begins with an excerpt of the code, in Node.js 24.19:
//
//   file:3
//   <line 2>
//   <line 3>
//      ^^^
//
// There are no carets if the error is at the end of the code. The error then has no column.
function syntaxError(error) {
  const [excerpt] = String(error.stack).split('\n\nSyntaxError');
  const line = /^.*?:(\d+)\n/.exec(excerpt)?.[1];
  const indent = /\n( *)\^+$/.exec(excerpt)?.[1];
  const made = new SyntaxError(error.message);
  made.stack = line === undefined ? '' : `    at ${cellName()}:${line}${indent === undefined ? '' : `:${indent.length + 1}`}`;
  return made;
}

function compiles(code) {
  try {
    return Boolean(new vm.Script(code));
  } catch {
    return false;
  }
}

function replaced(code, bare) {
  const found = [];
  const statement = /(?<=^|[;}\n])[ \t]*import\b\s*(?![.(\s])((?:[\w$*{},\s]|\bas\b)*?\bfrom\b)?(?=\s*["'`])/g;
  for (const match of bare.matchAll(statement)) {
    const start = match.index;
    const rest = /^\s*(["'])(.*?)\1(?:\s*with\s*(\{[^}]*\}))?/s.exec(code.slice(start + match[0].length));
    if (rest === null) continue;
    const options = rest[3] ? `, { with: ${rest[3]} }` : '';
    const call = `await __sandlot_import(${stringify(rest[2])}${options})`;
    const lines = '\n'.repeat((match[0] + rest[0]).split('\n').length - 1);
    found.push([start, start + match[0].length + rest[0].length, `${bound(match[1], call)}${lines}`]);
  }
  for (const match of bare.matchAll(/(?<![.\w$])import(?=\s*\()/g)) found.push([match.index, match.index + 6, '__sandlot_import']);
  let text = code;
  for (const [start, end, instead] of found.sort((one, other) => other[0] - one[0])) text = text.slice(0, start) + instead + text.slice(end);
  return text;
}

// Returns the declarations that replace an import statement.
// clause: text between `import` and the name of the module, such as `{ a as b } from`; undefined for an import without names.
// call: code that imports the module.
function bound(clause, call) {
  if (clause === undefined) return call;
  const [, standard, star, names] = /^\s*([\w$]+)?\s*,?\s*(?:\*\s*as\s+([\w$]+))?\s*(?:\{([^}]*)\})?\s*from$/.exec(clause) ?? [];
  const bindings = (names ?? '').split(',').map((entry) => entry.trim()).filter(Boolean).map((entry) => entry.replace(/\s+as\s+/, ': '));
  if (standard) bindings.unshift(`default: ${standard}`);
  if (star) return `const ${star} = ${call}${standard ? `, { default: ${standard} } = ${star}` : ''}`;
  return `const { ${bindings.join(', ')} } = ${call}`;
}

// Returns a copy of the code in which the contents of strings, comments and regular expressions are blanks, so that searches ignore them.
function masked(code) {
  const token = /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|"(?:\\[\s\S]|[^"\\\n])*"?|'(?:\\[\s\S]|[^'\\\n])*'?|`(?:\\[\s\S]|[^`\\])*`?|(?<=(?:^|[(,=:[!&|?{};+\-*%<>~^]|\breturn|\btypeof)\s*)\/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\//g;
  return code.replace(token, (text) => (text.length < 2 ? text : text[0] + text.slice(1, -1).replace(/[^\n]/g, ' ') + text.at(-1)));
}

const here = () => path.join(process.cwd(), 'cell.js');
// Path beside npm's global node_modules: imports that are resolved from this path find the global packages. The file need not exist.
const globalPackages = path.join(path.dirname(path.dirname(process.execPath)), 'lib', 'cell.js');

// Makes imports search the globally installed packages last. Imports of cells search the working directory and its parents first, and imports of files
// search the folder of the file and its parents.
if (isMainThread && typeof module.registerHooks === 'function') {
  module.registerHooks({
    resolve(specifier, context, nextResolve) {
      const parentURL = context.parentURL === import.meta.url ? pathToFileURL(here()).href : context.parentURL;
      try {
        return nextResolve(specifier, { ...context, parentURL });
      } catch (error) {
        if (error.code !== 'ERR_MODULE_NOT_FOUND' || /^(\.|\/|\w+:)/.test(specifier)) throw error;
        try {
          return nextResolve(specifier, { ...context, parentURL: pathToFileURL(globalPackages).href });
        } catch {
          throw error;
        }
      }
    },
  });
}

function hidden(name, value) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

const requireHere = (id) => createRequire(here())(id);
Object.defineProperties(requireHere, {
  resolve: { value: (id, options) => createRequire(here()).resolve(id, options) },
  cache: { get: () => createRequire(here()).cache },
  main: { value: undefined },
});

// -- the globals of cells ---------------------------------------------------------------------------------------------------------------

function stream(target, channel) {
  target.write = (chunk, encoding, callback) => {
    const data = typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8') : Buffer.from(chunk);
    const cell = owner.getStore()?.id ?? last;
    if (cell !== null) for (let at = 0; at < data.length; at += PIECE) send({ event: 'output', cell, channel, data: data.subarray(at, at + PIECE) });
    const then = typeof encoding === 'function' ? encoding : callback;
    if (typeof then === 'function') process.nextTick(then);
    return true;
  };
}

// Handles an error that no code has caught, or a rejection that no code has handled.
function uncaught(thrown) {
  if (thrown instanceof Exit) return;
  const current = owner.getStore() ?? running;
  if (current !== null && current === running) fail(current, thrown);
  else process.stderr.write(`Uncaught ${described(thrown).traceback.join('\n')}\n`);
}

// Replaces the functions of node that start timers, so that a cell waits for its one-shot timers.
function trackTimers() {
  const { setTimeout: delayed, setImmediate: soon, scheduler } = timersPromises;
  // The timer of a promise is not accessible: another timer of the same length is noted instead.
  const noteDelay = (delay, options) => {
    if (options?.ref === false || options?.signal?.aborted) return;
    const timer = setTimeout(() => {}, delay);
    note(timer, delay);
    options?.signal?.addEventListener?.('abort', () => clearTimeout(timer), { once: true });
  };
  const tracked = {
    setTimeout(callback, delay, ...rest) {
      const timer = setTimeout(callback, delay, ...rest);
      note(timer, delay);
      return timer;
    },
    setImmediate(callback, ...rest) {
      const timer = setImmediate(callback, ...rest);
      note(timer, 0);
      return timer;
    },
    setInterval(callback, delay, ...rest) {
      return repeated.run(true, () => setInterval(callback, delay, ...rest)); // an interval calls its callback with the stores of its start
    },
  };
  const promised = {
    setTimeout(delay, value, options) {
      const promise = delayed(delay, value, options);
      noteDelay(delay, options);
      return promise;
    },
    setImmediate(value, options) {
      const promise = soon(value, options);
      noteDelay(0, options);
      return promise;
    },
  };
  for (const [name, made] of entries(promised)) {
    Object.defineProperty(tracked[name], util.promisify.custom, { enumerable: true, value: made });
    timersPromises[name] = made;
  }
  for (const [name, made] of entries(tracked)) {
    Object.defineProperty(globalThis, name, { value: made });
    timers[name] = made;
  }
  const wait = scheduler?.wait;
  if (wait !== undefined) {
    scheduler.wait = (delay, options) => {
      const promise = wait.call(scheduler, delay, options);
      noteDelay(delay, options);
      return promise;
    };
  }
  module.syncBuiltinESMExports();
}

function installGlobals() {
  trackTimers();
  process.exit = (code = process.exitCode ?? 0) => {
    const current = owner.getStore() ?? running;
    process.exitCode = undefined;
    if (current !== null && current === running) {
      if (Number(code)) sendError(current.id, 'ExitStatus', String(code), [`ExitStatus: ${code}`]);
      done(current, !Number(code));
    }
    throw new Exit(`process.exit(${code})`);
  };
  stream(process.stdout, 1);
  stream(process.stderr, 2);
  process.on('uncaughtException', uncaught);
  process.on('unhandledRejection', uncaught);
  process.on('SIGINT', () => {});
  process.argv.length = 1;
  if (!process.env.NODE_PATH) {
    process.env.NODE_PATH = path.join(path.dirname(globalPackages), 'node_modules');
    module._initPaths?.(); // undocumented: makes node read NODE_PATH again, which it otherwise does only when it starts
    delete process.env.NODE_PATH;
  }
  hidden('require', requireHere);
  hidden('module', { exports: {} });
  hidden('exports', {});
  hidden('__sandlot_import', (specifier, options) => import(specifier, options));
  hidden('__sandlot_run', undefined);
  hidden('display', (...values) => values.forEach((value) => show(owner.getStore()?.id ?? last, value, false)));
}

// -- wakes: new random numbers after a restore --------------------------------------------------------------------------------------------

// Makes random numbers differ from those of other sandboxes with the same memory.
// - Math.random: V8's generator cannot be reseeded. It is replaced by xoshiro(), unless a cell has replaced it.
// - crypto: UUIDs and integers that node has generated in advance are drawn and discarded.
// - OpenSSL's generator in node cannot be reseeded. If the processor has a generator, the guest makes OpenSSL use it (guest/kernels/languages.py).
function reseed(entropy) {
  if (Math.random === random) {
    random = xoshiro(entropy);
    Object.defineProperty(Math, 'random', { value: random, writable: true, configurable: true, enumerable: false });
  }
  try {
    const crypto = createRequire(import.meta.url)('node:crypto');
    for (let drawn = 0; drawn < UUIDS_AHEAD; drawn += 1) crypto.randomUUID();
    for (let drawn = 0; drawn < INTEGERS_AHEAD; drawn += 1) crypto.randomInt(2);
  } catch {
    // node was built without crypto
  }
}

let { random } = Math;

// Returns a replacement for Math.random, seeded with 16 bytes of `entropy`: the generator xoshiro128** by David Blackman and Sebastiano Vigna. Each
// number is made from two 32-bit words of the generator.
function xoshiro(entropy) {
  const words = new DataView(entropy.buffer, entropy.byteOffset, entropy.byteLength);
  const state = Uint32Array.from({ length: 4 }, (_, number) => words.getUint32(4 * number));
  const rotated = (word, by) => (word << by) | (word >>> (32 - by));
  const next = () => {
    const word = Math.imul(rotated(Math.imul(state[1], 5), 7), 9) >>> 0;
    const shifted = state[1] << 9;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotated(state[3], 11);
    return word;
  };
  return { random: () => ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53 }.random;
}

// -- receiving -----------------------------------------------------------------------------------------------------------------------------------

// Memory that both threads share. progress[0] is the number of the last message that the main thread has handled. progress[1] is 1 while a cell is
// in its first turn of the event loop, in which its code may be terminated.
const progress = isMainThread ? new Int32Array(new SharedArrayBuffer(8)) : workerData.progress;

let began = false;

function acknowledge(number) {
  Atomics.store(progress, 0, Math.max(number, progress[0]));
}

function take(message) {
  if (message.number <= progress[0]) return; // the reading thread has passed this message twice
  if (message.op === 'execute' && (running === null || running.id === message.cell)) {
    startCell(message);
    return;
  }
  if (message.op === 'execute') waiting.push(message);
  else if (message.op === 'interrupt' && running !== null && (message.cell ?? running.id) === running.id) interrupted(running);
  else if (message.op === 'wake') {
    Object.assign(process.env, message.env);
    for (const name of message.gone ?? []) delete process.env[name];
    if (!began && message.cwd) process.chdir(message.cwd);
    if (began) reseed(message.entropy);
    began = true;
  }
  acknowledge(message.number);
}

// Main function of the reading thread, which reads messages of the guest and passes them to the main thread.
function listen() {
  let number = 0;
  let inspected = null;
  let unhandled = [];
  let newest = null; // id of the last cell that the guest has sent
  const pass = (message) => {
    message.number = number += 1;
    if (message.op === 'execute') newest = message.cell;
    unhandled = unhandled.filter((other) => other.number > progress[0]);
    unhandled.push(message);
    parentPort.postMessage(message);
    if (message.op === 'interrupt') setTimeout(resend, RESEND_MS);
  };
  // Passes messages to the main thread again until it has handled them: if the main thread is idle when its code is terminated, it loses the next
  // message. If one of the messages interrupts the newest cell, the code of this cell is terminated first.
  const resend = () => {
    unhandled = unhandled.filter((message) => message.number > progress[0]);
    if (unhandled.length === 0) return;
    if (progress[1] === 1 && unhandled.some((message) => message.op === 'interrupt' && message.cell === newest)) {
      if (inspected === null) {
        inspected = new inspector.Session();
        inspected.connectToMainThread();
      }
      inspected.post('Runtime.terminateExecution', () => {});
    }
    for (const message of unhandled) parentPort.postMessage(message);
    setTimeout(resend, RESEND_MS);
  };
  let buffer = Buffer.alloc(0);
  const link = new net.Socket({ fd: FD, readable: true, writable: false });
  link.on('data', (data) => {
    buffer = Buffer.concat([buffer, data]);
    while (buffer.length >= 4 && buffer.length >= 4 + buffer.readUInt32BE(0)) {
      const size = buffer.readUInt32BE(0);
      const message = decode(buffer.subarray(4, 4 + size));
      buffer = buffer.subarray(4 + size);
      pass(message);
    }
  });
  for (const end of ['end', 'error', 'close']) link.on(end, () => process.kill(process.pid, 'SIGKILL'));
}

// Loads node's parser of TypeScript, which takes 80 ms, without its warning that this function is experimental.
function loadTypeScript() {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  stripTypeScriptTypes?.('');
  process.emitWarning = emitWarning;
}

if (isMainThread) {
  if (TYPESCRIPT) loadTypeScript();
  installGlobals();
  session.connect();
  const reader = new Worker(new URL(import.meta.url), { workerData: { fd: FD, progress }, stdout: false, stderr: false, env: {} });
  reader.on('message', take);
  send({ event: 'ready' });
} else listen();

// Perfetto's own trace processor, asked about a trace: node perfetto_engine.mjs FOLDER TRACE SQL...
// Prints the rows of each query as JSON. FOLDER has the worker of Perfetto's page and its wasm
// (tools/fetch_perfetto.py). The worker expects a browser: it gets the little that it asks for.
import { readFileSync } from "node:fs";
import { createContext, runInContext } from "node:vm";

const [folder, trace, ...queries] = process.argv.slice(2);
// Requests and fields of TraceProcessorRpc, as Perfetto numbers them.
const APPEND = 1, FINALIZE = 2, QUERY = 3;
const REQUEST = 2, ERROR = 5, DATA = 101, QUERY_ARGS = 103, APPEND_RESULT = 201, QUERY_RESULT = 203;
const CELLS = { 1: "null", 2: "varint", 3: "float", 4: "string", 5: "blob" };

class XMLHttpRequest {
  open(_method, place) {
    this.name = place.split("/").pop();
  }
  send() {
    this.response = new Uint8Array(readFileSync(`${folder}/${this.name}`)).buffer;
  }
}

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) + 128);
  return Buffer.from([...bytes, number]);
}

function field(number, content) {
  if (typeof content === "number") return Buffer.concat([varint(number * 8), varint(content)]);
  return Buffer.concat([varint(number * 8 + 2), varint(content.length), content]);
}

function* varints(bytes) {
  for (let at = 0; at < bytes.length; ) {
    let value = 0n, shift = 0n;
    do {
      value |= BigInt(bytes[at] & 127) << shift;
      shift += 7n;
    } while (bytes[at++] & 128);
    yield [BigInt.asIntN(64, value), at];
  }
}

/** The fields of a message: [number, bytes or integer]. */
function* fields(bytes) {
  for (let at = 0; at < bytes.length; ) {
    const read = () => {
      const [value, length] = varints(bytes.subarray(at)).next().value;
      at += length;
      return Number(value);
    };
    const tag = read();
    if (tag % 8 === 0) yield [tag >> 3, read()];
    else if (tag % 8 === 1) at += 8;
    else if (tag % 8 === 5) at += 4;
    else {
      const length = read();
      yield [tag >> 3, bytes.subarray(at, (at += length))];
    }
  }
}

function rows(result) {
  const columns = [], cells = [];
  for (const [number, value] of fields(result)) {
    if (number === 1) columns.push(value.toString());
    if (number === 2 && value.length) throw new Error(value.toString());
    if (number === 3) cells.push(...batch(value));
  }
  const width = columns.length;
  const starts = Array.from({ length: cells.length / width }, (_, at) => at * width);
  return starts.map((at) => cells.slice(at, at + width));
}

function batch(bytes) {
  const kinds = [], values = { null: [], varint: [], float: [], string: [] };
  for (const [number, value] of fields(bytes)) {
    if (number === 1) kinds.push(...value);
    if (number === 2) for (const [one] of varints(value)) values.varint.push(Number(one));
    if (number === 3) {
      for (let at = 0; at < value.length; at += 8) values.float.push(value.readDoubleLE(at));
    }
    if (number === 5) values.string.push(...value.toString().split("\0"));
  }
  return kinds.map((kind) => values[CELLS[kind]].shift() ?? null);
}

const self = { location: { href: "http://localhost/engine_bundle.js" } };
const browser = { self, location: self.location, WorkerGlobalScope: Object, XMLHttpRequest };
const quiet = { log() {}, warn() {}, error() {} };
const context = createContext({ ...browser, URL, TextDecoder, performance, crypto, console: quiet });
runInContext(readFileSync(`${folder}/engine_bundle.js`, "utf8"), context);
const OfWorker = runInContext("Uint8Array", context); // it takes no other kind of bytes
let replies = [];
const port = { postMessage: (reply) => replies.push(Buffer.from(reply)) };
self.onmessage({ data: port });
await new Promise((resume) => setImmediate(resume)); // until the worker has begun

function ask(request, more = Buffer.alloc(0)) {
  replies = [];
  const message = field(1, Buffer.concat([field(REQUEST, request), more]));
  port.onmessage({ data: new OfWorker(message) });
  const answers = [...fields(Buffer.concat(replies))].flatMap(([, answer]) => [...fields(answer)]);
  for (const [number, value] of answers) {
    const wrong = number === ERROR ? value : number === APPEND_RESULT ? failure(value) : null;
    if (wrong?.length) throw new Error(wrong.toString());
  }
  return answers.filter(([number]) => number === QUERY_RESULT).map(([, value]) => value);
}

function failure(result) {
  return [...fields(result)].find(([number]) => number === 2)?.[1];
}

ask(APPEND, field(DATA, readFileSync(trace)));
ask(FINALIZE);
const told = queries.map((sql) =>
  rows(Buffer.concat(ask(QUERY, field(QUERY_ARGS, field(1, Buffer.from(sql)))))),
);
console.log(JSON.stringify(told));

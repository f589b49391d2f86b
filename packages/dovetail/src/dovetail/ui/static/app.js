// The page: views by address, the admin key, updates by server-sent events, and the theme.

import { setAttribute, setText } from "./dom.js";
import { createOverview } from "./overview.js";
import { createSessionView } from "./session.js";
import { createSessionsView } from "./sessions.js";

const KEY_NAME = "dovetail-admin-key";
const THEME_NAME = "dovetail-theme";
const THEMES = ["auto", "dark", "light"];
const RETRY_MS = [500, 1000, 2000, 5000];

const main = document.getElementById("main");
const status = document.getElementById("status");
let overview = null; // the last one from the server
let current = null; // the view that is shown: { name, view, update }
let seen = ""; // what the shown data depends on

startTheme();
const recorded = document.getElementById("session-data");
if (recorded) startRecorded(JSON.parse(recorded.textContent));
else startLive();

/** Show the session of a trace file. Nothing is loaded. */
function startRecorded(session) {
  document.body.classList.add("recorded");
  const view = createSessionView(null);
  main.append(view.node);
  const show = () => {
    const turn = new URLSearchParams(location.hash.split("?")[1] || "").get("turn");
    view.update(session, turn === null ? null : Number(turn), null);
  };
  addEventListener("hashchange", show);
  show();
}

function startLive() {
  const overviewPage = createOverview();
  const sessionsPage = createSessionsView((query, offset) =>
    request("sessions", { q: query, offset }));
  const views = {
    overview: () => ({ node: overviewPage.node, update: () => overviewPage.update(overview) }),
    sessions: () => ({ node: sessionsPage.node, update: () => sessionsPage.update(overview.now) }),
    session: openSession,
  };

  async function show() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const name = views[path] ? path : "overview";
    const parameters = new URLSearchParams(query || "");
    const isSame = current?.name === name && current.key === (parameters.get("id") ?? "");
    if (isSame) current.parameters = parameters;
    else {
      const view = views[name](parameters);
      current = { name, key: parameters.get("id") ?? "", parameters, ...view };
      main.replaceChildren(view.node);
      scrollTo(0, 0);
    }
    for (const link of document.querySelectorAll("nav a")) {
      if (name.startsWith(link.dataset.view.replace(/s$/, ""))) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (overview) await current.update(current.parameters, true);
    document.title = `${main.querySelector("h1")?.textContent || "Overview"} – Dovetail`;
  }

  addEventListener("hashchange", show);
  show();
  followOverview();
}

function openSession() {
  const view = createSessionView((turn) => request("payload", { ...sessionQuery(), turn: turn.id }));
  let loaded = null;
  const sessionQuery = () => ({
    id: current.parameters.get("id") ?? "",
    tenant: current.parameters.get("tenant") ?? "",
  });
  return {
    node: view.node,
    async update(parameters, isNavigation) {
      if (!loaded || !isNavigation) loaded = (await request("session", sessionQuery())) || loaded;
      const turn = parameters.get("turn");
      if (loaded) view.update(loaded, turn === null ? null : Number(turn), overview.now);
      else showStatus("This session is not in memory.");
    },
  };
}

/** Receive the overview every second. The views load more only if something has changed. */
async function followOverview() {
  for (let attempt = 0; ; attempt += 1) {
    try {
      await readEvents((data) => {
        attempt = 0;
        showStatus("live");
        overview = data;
        const version = [data.totals.requests, data.running, data.queued, data.errors.length].join();
        const isChanged = version !== seen;
        seen = version;
        if (current.name === "overview") current.update();
        else if (isChanged || !main.dataset.loaded) current.update(current.parameters, false);
        setAttribute(main, "data-loaded", "");
      });
    } catch (error) {
      if (error.status === 403) return showStatus(error.message);
      showStatus("reconnecting …");
    }
    await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]));
  }
}

async function readEvents(onOverview) {
  const response = await send("events");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (pending + value).split("\n\n");
    pending = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find((line) => line.startsWith("data: "));
      if (data) onOverview(JSON.parse(data.slice(6)));
    }
  }
}

/** Request data as JSON; null if it does not exist or the server does not respond. */
async function request(name, query) {
  try {
    return await (await send(`${name}?${new URLSearchParams(query)}`)).json();
  } catch {
    return null;
  }
}

async function send(path) {
  for (;;) {
    const key = sessionStorage.getItem(KEY_NAME);
    const headers = key ? { "x-api-key": key } : {};
    const response = await fetch(`ui/api/${path}`, { headers, cache: "no-store" });
    if (response.ok) return response;
    const problem = new Error((await response.json().catch(() => null))?.error?.message || `status ${response.status}`);
    problem.status = response.status;
    const asksForKey = response.status === 401 || (response.status === 403 && key);
    if (!asksForKey) throw problem;
    await askForKey(problem.message);
  }
}

let asking = null;

/** Ask for the admin key, once for all requests that wait for it. */
function askForKey(reason) {
  asking ||= new Promise((done) => {
    const dialog = document.getElementById("key-dialog");
    const input = document.getElementById("key");
    setText(document.getElementById("key-reason"), `${reason} The key stays in this browser tab.`);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.getElementById("key-form").onsubmit = () => {
      sessionStorage.setItem(KEY_NAME, input.value.trim());
      input.value = "";
      asking = null;
      done();
    };
    if (!dialog.open) dialog.showModal();
  });
  return asking;
}

function showStatus(text) {
  setText(status, text);
  setAttribute(status, "data-kind", text === "live" ? "good" : "bad");
}

function startTheme() {
  const button = document.getElementById("theme");
  let theme = "auto";
  try {
    theme = localStorage.getItem(THEME_NAME) || "auto";
  } catch { /* a file without storage */ }
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    setText(button, `Theme: ${theme}`);
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try {
      localStorage.setItem(THEME_NAME, theme);
    } catch { /* the choice lasts until the page is closed */ }
    apply();
  });
  apply();
}

// Plays one scene on the dashboard in a headless browser and prints what was seen there.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

const { BROWSER, GATEWAY, ADMIN, AGENT, SESSION, TURN, SHOTS } = process.env;
const [scene] = process.argv.slice(-1);
const axe = await readFile(createRequire(join(process.cwd(), "x.js")).resolve("axe-core/axe.min.js"), "utf8");

const PAGES = { overview: "#/", sessions: "#/sessions", session: `#/sessions/${SESSION}`, judging: "#/judging", learning: "#/learning", workers: "#/workers" };
const READY = "document.getElementById('fresh').textContent !== ''";
const WIDE = { width: 1280, height: 900 };
const PHONE = { width: 375, height: 800, isMobile: true, hasTouch: true };

// Whoever runs this ends it where it hangs; a busy machine is given its time.
const PATIENCE_MS = 600_000;

const browser = await puppeteer.launch({
  // By a pipe: the browser ends with this process, however that ends.
  executablePath: BROWSER, headless: "shell", pipe: true, timeout: PATIENCE_MS, protocolTimeout: PATIENCE_MS,
  args: ["--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--lang=en-GB"],
});

async function opened({ scheme = "light", viewport = WIDE } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const trouble = [], elsewhere = [];
  page.on("console", (said) => {
    if (["error", "warn"].includes(said.type())) trouble.push(said.text());
  });
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(GATEWAY)) elsewhere.push(request.url());
  });
  await page.evaluateOnNewDocument(() => {
    globalThis.violations = [];
    document.addEventListener("securitypolicyviolation", (one) => globalThis.violations.push(`${one.violatedDirective} ${one.blockedURI}`));
  });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.setViewport(viewport);
  await page.goto(`${GATEWAY}/dashboard`);
  return { page, context, trouble, elsewhere };
}

async function enter(page, key = ADMIN) {
  await page.waitForSelector("#key");
  await page.type("#key", key);
  await page.keyboard.press("Enter");
}

async function goto(page, hash) {
  // The page hears of it first, and takes no answer from then on that an earlier view asked for.
  await page.evaluate((to) => new Promise((done) => {
    globalThis.addEventListener("hashchange", () => {
      document.getElementById("fresh").textContent = "";
      done();
    }, { once: true });
    location.hash = to;
  }), hash);
  await page.waitForFunction(READY);
}

async function examined(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations.map((one) => `${one.impact} ${one.id} ${one.nodes[0].html.slice(0, 200)}`);
}

const text = (page, selector = "main") => page.$eval(selector, (one) => one.innerText);
const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

const WAYS = { light: {}, dark: { scheme: "dark" }, phone: { viewport: PHONE }, "phone-dark": { scheme: "dark", viewport: PHONE } };

async function shot(page, name) {
  if (SHOTS) await page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
}

async function pages() {
  const seen = {};
  for (const [name, how] of Object.entries(WAYS)) {
    const { page, context, trouble, elsewhere } = await opened(how);
    const form = await examined(page);
    await shot(page, `key-${name}`);
    await enter(page);
    await page.waitForFunction(READY);
    seen[name] = { form, views: {}, trouble, elsewhere };
    for (const [view, hash] of Object.entries(PAGES)) {
      await goto(page, hash);
      if (view === "session") {
        const button = await page.$(`#tokens-${TURN}`);
        await button.click();
        await page.waitForSelector(".tokens span");
        await page.click(`#why-${TURN} summary`);
      }
      seen[name].views[view] = {
        text: await text(page), violations: await examined(page), overflow: await overflow(page),
        title: await page.title(), charts: (await page.$$("canvas")).length,
        named: await page.$$eval(".chart:not([hidden])", (found) => found.map((one) => one.getAttribute("aria-label"))),
        tokens: await page.$$eval(".tokens span", (found) => found.map((one) => [one.textContent, one.className])),
      };
      await shot(page, `${view}-${name}`);
    }
    seen[name].policy = await page.evaluate(() => globalThis.violations);
    seen[name].stored = await page.evaluate(() => [localStorage.length, document.cookie, Object.keys(sessionStorage)]);
    await context.close();
  }
  return seen;
}

// The tokens of one turn by each colour.
async function tokens() {
  const seen = {};
  for (const scheme of ["light", "dark"]) {
    const { page, trouble } = await opened({ scheme });
    await enter(page);
    await page.waitForFunction(READY);
    await goto(page, PAGES.session);
    await page.click(`#tokens-${TURN}`);
    await page.waitForSelector(`#by-${TURN}`);
    seen[scheme] = { trouble, by: {} };
    for (const by of await page.$$eval(`#by-${TURN} option`, (found) => found.map((one) => one.value))) {
      await page.select(`#by-${TURN}`, by);
      seen[scheme].by[by] = {
        violations: await examined(page), legend: await page.$$eval(".key > span", (found) => found.map((one) => one.textContent)),
        classes: await page.$$eval(".tokens span", (found) => [...new Set(found.map((one) => one.className))]),
      };
      if (SHOTS) {
        const turn = await page.evaluateHandle((id) => document.getElementById(id).closest("article"), `tokens-${TURN}`);
        await turn.screenshot({ path: join(SHOTS, `tokens-${by}-${scheme}.png`) });
      }
    }
  }
  return seen;
}

// What is shown before anything is known, and where it never comes to be known.
async function waiting() {
  const seen = {};
  for (const scheme of ["light", "dark"]) {
    const { page } = await opened({ scheme });
    const held = [];
    let away = false;
    await page.setRequestInterception(true);
    page.on("request", (request) => {
      if (!request.url().includes("/admin/")) request.continue();
      else if (away) request.abort();
      else held.push(request);
    });
    await enter(page);
    seen[scheme] = {};
    for (const [view, hash] of Object.entries(PAGES)) {
      const before = held.length;
      await page.evaluate((to) => { location.hash = to; }, hash);
      await page.waitForFunction((to) => location.hash === to || to === "#/", {}, hash);
      while (held.length === before && view !== "overview") await new Promise((again) => setTimeout(again, 10));
      seen[scheme][view] = { text: await text(page), busy: await page.$eval("main", (one) => one.getAttribute("aria-busy")), violations: await examined(page) };
      await shot(page, `loading-${view}-${scheme}`);
    }
    away = true;
    await page.evaluate((to) => { location.hash = to; }, PAGES.judging);
    await page.waitForFunction("document.getElementById('notice').textContent !== ''");
    seen[scheme].away = { text: await text(page), notice: await text(page, "#notice"), violations: await examined(page) };
    await shot(page, `away-${scheme}`);
  }
  return seen;
}

// A wrong key, a key without the role, a gateway that goes away and comes back, and leaving.
async function states() {
  const seen = {};
  const { page, trouble } = await opened();
  for (const [name, key] of [["wrong", "sk-ns-nobody"], ["agent", AGENT]]) {
    await enter(page, key);
    await page.waitForFunction("document.getElementById('notice').textContent !== ''");
    seen[name] = { notice: await text(page, "#notice"), form: (await page.$("#key")) !== null, kept: await page.evaluate(() => sessionStorage.length) };
  }
  await enter(page);
  await page.waitForFunction(READY);
  let away = true;
  page.on("request", (request) => (away && request.url().includes("/admin/") ? request.abort() : request.continue()));
  await page.setRequestInterception(true);
  await page.waitForFunction("document.getElementById('notice').textContent !== ''");
  seen.away = { notice: await text(page, "#notice"), main: await text(page) };
  away = false;
  await page.waitForFunction("document.getElementById('notice').textContent === ''");
  seen.back = await text(page);
  await page.evaluate(() => { location.hash = "#/nowhere"; });
  await page.waitForFunction("document.querySelector('main').innerText.includes('no such page')");
  await page.reload();
  await page.waitForSelector("#pages:not([hidden])");
  await page.click("#leave");
  await page.waitForSelector("#key");
  seen.left = { kept: await page.evaluate(() => sessionStorage.length), main: await text(page) };
  seen.errors = trouble.filter((one) => !one.includes("Failed to load resource"));
  return seen;
}

// A turn that is served while the page is open is counted there, and nothing else moves.
async function live() {
  const { page } = await opened();
  await enter(page);
  await page.waitForFunction(READY);
  const figure = "document.querySelectorAll('.tile .figure')[1].textContent";
  const before = await page.evaluate(figure);
  const answer = await fetch(`${GATEWAY}/v1/chat/completions`, {
    method: "POST", headers: { authorization: `Bearer ${AGENT}`, "content-type": "application/json" },
    body: JSON.stringify({ model: "tiny", messages: [{ role: "user", content: "Hello?" }], max_tokens: 8 }),
  });
  await page.waitForFunction(`${figure} !== ${JSON.stringify(before)}`);
  const after = await page.evaluate(figure);
  await goto(page, "#/sessions");
  await page.focus("main th a");
  const focused = await page.evaluate(() => document.activeElement.id);
  const fresh = await text(page, "#fresh");
  await page.waitForFunction((old) => document.getElementById("fresh").textContent !== old, {}, fresh);
  return { status: answer.status, before, after, focused, still: await page.evaluate(() => document.activeElement.id) };
}

// From the top by the keyboard alone.
async function keyboard() {
  const { page } = await opened();
  await page.waitForSelector("#key");
  const first = await page.evaluate(() => document.activeElement.id);
  await page.keyboard.type(ADMIN);
  await page.keyboard.press("Enter");
  await page.waitForFunction(READY);
  await page.reload();
  await page.waitForFunction(READY);
  const path = [];
  for (let step = 0; step < 11; step += 1) {
    await page.keyboard.press("Tab");
    path.push(await page.evaluate(() => document.activeElement.textContent.trim().split("\n")[0].slice(0, 30) || document.activeElement.id));
    if (path[path.length - 1] === "Judging") break;
  }
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  await page.keyboard.press("Enter");
  await page.waitForFunction("document.title.startsWith('Judging')");
  const focus = await page.evaluate(() => document.activeElement.id);
  const current = await page.$eval("nav [aria-current=page]", (one) => one.textContent);
  return { first, path, outline, focus, current };
}

// What a tenant sees that has nothing yet.
async function empty() {
  const { page, trouble } = await opened();
  await enter(page);
  await page.waitForFunction(READY);
  const seen = {};
  for (const [view, hash] of Object.entries(PAGES)) {
    if (view === "session") continue;
    await goto(page, hash);
    seen[view] = { text: await text(page), violations: await examined(page) };
  }
  return { seen, trouble };
}

try {
  console.log(JSON.stringify(await { pages, tokens, waiting, states, live, keyboard, empty }[scene]()));
} finally {
  await browser.close();
}

// Unpacks the browser of the package beside TMPDIR, once, and prints where it is.
import chromium from "@sparticuz/chromium";

console.log(JSON.stringify(await chromium.executablePath()));

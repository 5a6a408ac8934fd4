// What every page does by itself. Without script every page shows the same facts, and acts are forms.

import "./actions.js";
import "./keys.js";
import "./select.js";

if (document.querySelector("#live")) import("./live.js");

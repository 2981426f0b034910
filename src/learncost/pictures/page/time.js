// Time: the seconds of every line on a device.
"use strict";

function timesAt(time, axes) {
  return null;
}

// What starts when all parts are read.
"use strict";

start();

"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, parent, text = "") => {
    const found = document.createElement(name);
    found.textContent = text;
    parent.append(found);
    return found;
  };

  // Charts: colours are names of the page's, for light and for dark.

  const painted = (value, style) => {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map(each => painted(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, painted(each, style)]));
  };
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const options = { responsive: true, displaylogo: false };
    if (innerWidth < 700) options.displayModeBar = false;
    for (const chart of document.querySelectorAll(".chart")) {
      const figure = painted(JSON.parse(chart.querySelector("script").textContent), style);
      Plotly.react(chart.querySelector(".plot"), figure.data, figure.layout, options);
    }
  };
  if (window.Plotly) {
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  // Tables: a click on a heading sorts.

  const number = text => parseFloat(text.replace(/,/g, ""));
  const order = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (!isNaN(x) && !isNaN(y)) return x - y;
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? -1 : 1;
    return a.localeCompare(b);
  };
  for (const heading of document.querySelectorAll("th")) {
    heading.addEventListener("click", () => {
      const [row, body] = [heading.parentElement, heading.closest("table").tBodies[0]];
      const column = [...row.children].indexOf(heading);
      const up = heading.getAttribute("aria-sort") === "descending";
      for (const each of row.children) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const cell = each => each.children[column].textContent;
      const rows = [...body.rows].sort((a, b) => order(cell(a), cell(b)) * (up ? 1 : -1));
      body.append(...rows);
    });
  }

  // Graphs: moved, enlarged, coloured, searched, asked.

  for (const [place, drawing] of document.querySelectorAll(".drawing").entries()) {
    const [view, graph, map] = [".view", ".graph", ".map"].map(each => drawing.querySelector(each));
    const [moved, aside, search] = [".moved", ".details", "input"].map(each => drawing.querySelector(each));
    const details = JSON.parse(drawing.lastElementChild.textContent);
    const boxes = [...graph.querySelectorAll(".box")];
    const [width, height] = [+graph.dataset.width, +graph.dataset.height];
    const at = { x: 0, y: 0, zoom: 1 };

    const seen = document.createElementNS(SVG, "rect");
    for (const box of boxes.filter(each => !each.classList.contains("chip"))) {
      const small = document.createElementNS(SVG, "rect");
      const place = box.transform.baseVal[0].matrix;
      for (const [name, value] of Object.entries({ x: place.e, y: place.f, width: 176, height: 40 })) small.setAttribute(name, value);
      small.setAttribute("class", box.getAttribute("class").replace("box", ""));
      map.append(small);
    }
    seen.setAttribute("class", "seen");
    map.append(seen);

    const show = () => {
      const [w, h] = [view.clientWidth, view.clientHeight];
      const room = (size, all) => [Math.min(size - all, 0) - 40, Math.max(size - all, 0) + 40];
      const within = (value, [low, high]) => Math.min(Math.max(value, low), high);
      at.x = within(at.x, room(w, width * at.zoom));
      at.y = within(at.y, room(h, height * at.zoom));
      moved.setAttribute("transform", `translate(${at.x} ${at.y}) scale(${at.zoom})`);
      map.style.display = width * at.zoom > w + 1 || height * at.zoom > h + 1 ? "" : "none";
      const rect = { x: -at.x / at.zoom, y: -at.y / at.zoom, width: w / at.zoom, height: h / at.zoom };
      for (const [name, value] of Object.entries(rect)) seen.setAttribute(name, value);
    };
    const least = () => Math.min(view.clientWidth / width, view.clientHeight / height, 1);
    const enlarge = (factor, x = view.clientWidth / 2, y = view.clientHeight / 2) => {
      const zoom = Math.min(Math.max(at.zoom * factor, least()), 4);
      at.x = x - (x - at.x) * zoom / at.zoom;
      at.y = y - (y - at.y) * zoom / at.zoom;
      at.zoom = zoom;
      show();
    };
    const middle = (x, y) => {
      at.x = view.clientWidth / 2 - x * at.zoom;
      at.y = view.clientHeight / 2 - y * at.zoom;
      show();
    };
    const fit = () => {
      at.zoom = least();
      middle(width / 2, height / 2);
    };
    const begin = () => {  // readable, at the inputs
      at.zoom = Math.max(Math.min(view.clientWidth / width, 1), least(), 0.75);
      const first = graph.querySelector(".box.input") || boxes[0];
      const place = first ? first.transform.baseVal[0].matrix : { e: 0 };
      at.x = view.clientWidth / 2 - (place.e + 88) * at.zoom;
      at.y = 0;
      show();
    };

    const address = box => `#${place ? `graph-${place}-` : ""}node-${box.dataset.key}`;
    const choose = (box, remembered = true) => {
      for (const each of graph.querySelectorAll(".chosen")) each.classList.remove("chosen");
      aside.replaceChildren();
      if (!box) return;
      box.classList.add("chosen");
      const found = details[box.dataset.key];
      make("h3", aside, found.title);
      for (const [heading, rows] of found.groups) {
        if (heading) make("h4", aside, heading);
        const list = make("dl", aside);
        for (const [name, value] of rows) {
          const row = make("div", list);
          make("dt", row, name);
          make("dd", row, value);
        }
      }
      aside.scrollTop = 0;
      if (remembered) history.replaceState(null, "", address(box));
    };
    const goTo = (box, remembered) => {
      const place = box.transform.baseVal[0].matrix;
      at.zoom = Math.max(at.zoom, 0.8);
      middle(place.e + 88, place.f + 20);
      choose(box, remembered);
    };

    const pointers = new Map();
    let distance = 0;
    graph.addEventListener("pointerdown", event => {
      pointers.set(event.pointerId, event);
      distance = 0;
    });
    graph.addEventListener("pointermove", event => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const others = [...pointers.values()].filter(each => each.pointerId !== event.pointerId);
      distance += Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY);
      if (distance > 4 && !graph.hasPointerCapture(event.pointerId)) {
        graph.setPointerCapture(event.pointerId);
        graph.classList.add("dragged");
      }
      if (others.length) {
        const span = each => Math.hypot(each.clientX - others[0].clientX, each.clientY - others[0].clientY);
        const frame = view.getBoundingClientRect();
        enlarge(span(event) / (span(before) || 1), others[0].clientX - frame.left, others[0].clientY - frame.top);
      } else {
        at.x += event.clientX - before.clientX;
        at.y += event.clientY - before.clientY;
        show();
      }
      pointers.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      graph.addEventListener(end, event => {
        pointers.delete(event.pointerId);
        graph.classList.remove("dragged");
      });
    }
    graph.addEventListener("click", event => {
      if (distance <= 4) choose(event.target.closest(".box"));
    });
    view.addEventListener("wheel", event => {
      if (document.activeElement !== view && !event.ctrlKey) return;  // the page moves
      event.preventDefault();
      const frame = view.getBoundingClientRect();
      enlarge(Math.exp(-event.deltaY / 400), event.clientX - frame.left, event.clientY - frame.top);
    }, { passive: false });
    const keys = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
    view.addEventListener("keydown", event => {
      if (event.key in keys) {
        at.x += keys[event.key][0];
        at.y += keys[event.key][1];
        show();
      } else if ("+-=".includes(event.key)) enlarge(event.key === "-" ? 0.8 : 1.25);
      else return;
      event.preventDefault();
    });
    map.addEventListener("click", event => {
      const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
      middle(place.x, place.y);
    });
    const zooms = { in: () => enlarge(1.4), out: () => enlarge(1 / 1.4), fit };
    for (const button of drawing.querySelectorAll("button")) button.addEventListener("click", zooms[button.dataset.zoom]);

    const words = Object.fromEntries(Object.entries(details).map(([key, each]) => [key, JSON.stringify(each).toLowerCase()]));
    let last = -1;
    search.addEventListener("input", () => { last = -1; });
    search.addEventListener("keydown", event => {
      const wanted = search.value.trim().toLowerCase().replace(/^#/, "");
      if (event.key !== "Enter" || !wanted) return;
      const fits = boxes.filter(box => box.dataset.key === wanted);
      if (!fits.length) fits.push(...boxes.filter(box => words[box.dataset.key].includes(wanted)));
      search.classList.toggle("none", !fits.length);
      if (fits.length) goTo(fits[last = (last + 1) % fits.length]);
    });

    const by = drawing.querySelector("select");
    const [legend, scale] = [".legend", ".scale"].map(each => drawing.querySelector(each));
    by?.addEventListener("change", () => {
      const [key, about] = [by.value, by.selectedOptions[0].dataset];
      graph.classList.toggle("heated", key !== "");
      [legend.hidden, scale.hidden] = [key !== "", key === ""];
      legend.style.display = key === "" ? "" : "none";
      [scale.querySelector(".low").textContent, scale.querySelector(".high").textContent] = [about.low || "", about.high || ""];
      for (const box of boxes) {
        const heat = JSON.parse(box.dataset.heat)[key];
        box.classList.toggle("warm", heat !== undefined);
        box.style.setProperty("--h", heat ?? 0);
      }
    });

    begin();
    new ResizeObserver(show).observe(view);
    const follow = () => {  // a link to a node
      const wanted = boxes.find(box => address(box) === location.hash);
      if (wanted) goTo(wanted);
      if (wanted) drawing.scrollIntoView();
      return wanted;
    };
    addEventListener("hashchange", follow);
    const marked = graph.querySelector(".marked");
    if (!follow() && marked) goTo(marked, false);
  }
})();

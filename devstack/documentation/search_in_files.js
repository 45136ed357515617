// Browsers refuse workers to pages that are opened as files. There the worker of the search runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
      const inner = this.frame.contentWindow;
      inner.document.open();
      inner.document.write("<!doctype html><body></body>");
      inner.document.close();
      inner.postMessage = (data) => this.later(data, (copy) => this.onmessage?.({ data: copy }));
      const script = Object.assign(inner.document.createElement("script"), { src: url });
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      inner.document.body.append(script);
    }
    later(data, deliver) {
      const copy = structuredClone(data); // as a worker gets it
      this.loaded.then(() => setTimeout(() => deliver(copy)));
    }
    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.later(data, (copy) => inner.dispatchEvent(new inner.MessageEvent("message", { data: copy })));
    }
    terminate() {
      this.frame.remove();
    }
  };

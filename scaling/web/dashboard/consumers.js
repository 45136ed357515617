// The list of consumers. It is read beside the targets, and fails by itself.

const CONSUMERS_OPEN = 1; // with no more consumers than this all are open

class Consumers {
  constructor(app) {
    this.app = app;
    this.cards = new Map();
    this.first = true;
  }

  /** Reads and shows; never throws what the server does. */
  async poll() {
    try {
      this.show((await readApi("consumer/status")).consumers);
      this.tell(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.tell(error);
    }
  }

  tell(error) {
    const section = byId("consumers");
    section.classList.toggle("unread", error !== null);
    byId("consumers-failure").hidden = error === null;
    if (error === null) return;
    setText(byId("consumers-failure"), `The consumers cannot be read: ${error.message}.`);
    if (this.first) byId("consumers-empty").hidden = true;
  }

  show(views) {
    setText(byId("consumer-count"), views.length ? String(views.length) : "");
    const names = new Set(views.map((view) => view.consumer));
    for (const [name, card] of this.cards) {
      if (names.has(name)) continue;
      card.close();
      card.element.remove();
      this.cards.delete(name);
    }
    const box = byId("consumer-cards");
    views.forEach((view, index) => {
      let card = this.cards.get(view.consumer);
      if (!card) this.cards.set(view.consumer, card = new ConsumerCard(view, this.app));
      if (box.children[index] !== card.element) box.insertBefore(card.element, box.children[index] ?? null);
      card.update(view);
    });
    if (this.first && views.length) {
      this.first = false;
      if (views.length <= CONSUMERS_OPEN) for (const card of this.cards.values()) card.toggle(true);
    }
    byId("consumers-empty").hidden = views.length > 0;
    setText(byId("consumers-empty"), "No consumer has reported within the last day. A running one reports here every few seconds when it has this app's storage account as AzureWebJobsStorage.");
  }
}

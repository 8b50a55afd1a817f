// Order of the search results: guides before reference, and both before the pages for developers.
var Scorer = {
  score: ([page, , , , score]) => {
    if (/^(SPECIFICATION|CONTRIBUTING|CHANGELOG|docs\/design\/.*|docs\/how-to\/write-a-.*|src\/.*)$/.test(page)) return score - 20
    if (/^(README|docs\/(how-to|tutorial)\/.*)$/.test(page)) return score + 20
    return score
  },
  // Sphinx's own values
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
}

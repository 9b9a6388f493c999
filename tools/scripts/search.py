"""The program behind the search tool: passages for queries, or the passages of pages, from a LocalWiki-like server."""

from common import *  # bundled
from endpoint import *  # bundled

BODY_KEYS = ("contents", "text", "content", "passage", "body")


def run(call):
    options = call["options"]
    if call["command"] == "crawl":
        return report(crawl(call, options), call["url_list"], options)
    return report(search(call, options), call["query_list"], options)


def search(call, options):
    """For each query, its documents: dicts of `contents` and, where the server gives them, `title`, `url`, `score`."""
    url = options["base_url"].rstrip("/") + options["path"]
    asked = {"queries": call["query_list"], "topk": call["topk"], "return_scores": True}
    found = ask(url, options, asked).get("result")
    if not isinstance(found, list) or len(found) != len(call["query_list"]):
        raise Failure("%s gave no `result` list with one entry for each query." % url)
    return [[document(item) for item in as_list(items)[: call["topk"]]] for items in found]


def crawl(call, options):
    """For each address, the passages that the server has of it, as documents."""
    if not options["crawl_path"]:
        raise Failure("Pages cannot be fetched here; use `search`.")
    url = options["base_url"].rstrip("/") + options["crawl_path"]
    found = ask(url, options, {"urls": call["url_list"]})
    pages = found.get("results", found.get("result"))
    if not isinstance(pages, list) or len(pages) != len(call["url_list"]):
        raise Failure("%s gave no `results` list with one entry for each address." % url)
    return [page_documents(page) for page in pages]


def ask(url, options, payload):
    try:
        answer = json.loads(fetch(url, options, payload).decode("utf-8"))
    except ValueError as error:
        raise Failure("%s did not answer with JSON: %s." % (url, error))
    if not isinstance(answer, dict):
        raise Failure("%s did not answer with a JSON object." % url)
    return answer


def document(item):
    """One passage, whatever shape the server gives it: bare, or as `{document, score}`."""
    out = {}
    inner = item.get("document", item) if isinstance(item, dict) else item
    if isinstance(inner, dict):
        for key in ("title", "url"):
            if isinstance(inner.get(key), str):
                out[key] = inner[key]
        bodies = [inner[key] for key in BODY_KEYS if isinstance(inner.get(key), str)]
        out["contents"] = bodies[0] if bodies else json.dumps(inner, ensure_ascii=False)
    else:
        out["contents"] = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
    if isinstance(item, dict) and isinstance(item.get("score"), (int, float)):
        out["score"] = round(item["score"], 4)
    return out


def page_documents(page):
    if isinstance(page, dict) and isinstance(page.get("texts"), list):
        return [document(text) for text in page["texts"]]
    return [document(item) for item in as_list(page)]


def as_list(value):
    return value if isinstance(value, list) else [value]


def report(groups, asked, options):
    """JSON `{"result": [[document]]}`, or text for reading; documents are cut so that the whole stays in bounds."""
    count = sum(len(group) for group in groups)
    limit = options["max_document_chars"]
    if count:
        limit = max(min(limit, options["max_chars"] // count), 80)
    most = max(options["max_chars"] // (limit * max(len(groups), 1)), 1)
    kept = [[dict(item, contents=cut(item["contents"], limit)) for item in group[:most]] for group in groups]
    if options["format"] == "json":
        out = {"result": kept}
        omitted = count - sum(len(group) for group in kept)
        if omitted:
            out["omitted"] = omitted
        return json.dumps(out, ensure_ascii=False) + "\n"
    blocks = []
    for question, group, whole in zip(asked, kept, groups):
        rows = ["# %s" % question]
        for number, item in enumerate(group, 1):
            title = " ".join(part for part in (item.get("title", ""), item.get("url", "")) if part)
            rows.append("[%d]%s\n%s" % (number, " " + title if title else "", item["contents"].strip()))
        if len(whole) > len(group):
            rows.append("[... %d more passages]" % (len(whole) - len(group)))
        if not whole:
            rows.append("(nothing found)")
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    sys.exit(main(run))

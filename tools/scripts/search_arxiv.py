"""The program behind the search_arxiv tool: recent papers from arXiv's Atom interface."""

from common import *  # bundled
from endpoint import *  # bundled

try:
    from datetime import datetime, timedelta, timezone
    from urllib.parse import urlencode
    from xml.etree import ElementTree
except ImportError:
    sys.exit(97)

ATOM = "{http://www.w3.org/2005/Atom}"


def run(call):
    options = call["options"]
    since = datetime.now(timezone.utc) - timedelta(days=call["days"]) if call["days"] else None
    url = options["base_url"].rstrip("/") + options["path"] + "?" + urlencode(parameters(call, since))
    papers = [paper for paper in parse(fetch(url, options), url) if since is None or paper["published"] >= day(since)]
    papers = papers[: call["max_results"]]
    limit = max(min(options["max_document_chars"], options["max_chars"] // max(len(papers), 1)), 80)
    for paper in papers:
        paper["abstract"] = cut(paper["abstract"], limit)
    if options["format"] == "json":
        return json.dumps({"result": papers}, ensure_ascii=False) + "\n"
    if not papers:
        when = " in the last %d days" % call["days"] if call["days"] else ""
        return "No paper was found for %r%s.\n" % (call["query"], when)
    return "\n\n".join(readable(number, paper) for number, paper in enumerate(papers, 1)) + "\n"


def parameters(call, since):
    query = call["query"].strip()
    # Plain words must all occur; a query in arXiv's own syntax (ti:, au:, AND, quotes, ...) is passed as it is.
    if not re.search(r'\b(ti|au|abs|co|jr|cat|rn|id|all|submittedDate):|\b(AND|OR|ANDNOT)\b|["()]', query):
        query = " AND ".join("all:" + word for word in query.split())
    if since is not None:
        now = datetime.now(timezone.utc) + timedelta(days=1)
        query = "(%s) AND submittedDate:[%s0000 TO %s0000]" % (query, since.strftime("%Y%m%d"), now.strftime("%Y%m%d"))
    return [
        ("search_query", query),
        ("start", "0"),
        ("max_results", str(call["max_results"])),
        ("sortBy", "submittedDate" if since is not None else "relevance"),
        ("sortOrder", "descending"),
    ]


def day(moment):
    return moment.strftime("%Y-%m-%d")


def parse(body, url):
    """The papers of an Atom feed, in its order."""
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise Failure("%s did not answer with an Atom feed." % bare(url))  # no feed declares entities; a bomb does
    try:
        feed = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Failure("%s did not answer with an Atom feed: %s." % (bare(url), error))
    if feed.tag != ATOM + "feed":
        raise Failure("%s did not answer with an Atom feed." % bare(url))
    papers = []
    for entry in feed.findall(ATOM + "entry"):
        address = text(entry, "id")
        if "/api/errors" in address:
            raise Failure("arXiv refused the query: %s" % text(entry, "summary"))
        papers.append(
            {
                "title": text(entry, "title"),
                "authors": [text(author, "name") for author in entry.findall(ATOM + "author")],
                "published": text(entry, "published")[:10],
                "url": address,
                "categories": [category.get("term", "") for category in entry.findall(ATOM + "category")],
                "abstract": text(entry, "summary"),
            }
        )
    return papers


def text(entry, name):
    return " ".join((entry.findtext(ATOM + name) or "").split())


def readable(number, paper):
    authors = paper["authors"]
    shown = ", ".join(authors[:8]) + (" and %d more" % (len(authors) - 8) if len(authors) > 8 else "")
    return "[%d] %s\n%s | %s | %s\n%s\n%s" % (
        number,
        paper["title"],
        paper["published"],
        shown,
        ", ".join(paper["categories"]),
        paper["url"],
        paper["abstract"],
    )


if __name__ == "__main__":
    sys.exit(main(run))

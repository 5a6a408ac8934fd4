"""The headers of pages: what a browser may load, run and send."""

#: Only files and addresses of this site; no inline script, style or handler anywhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types overnight"
)
PAGE_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}

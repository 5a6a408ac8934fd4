"""The routes, one module per kind of thing: parse the request, call one function, answer."""

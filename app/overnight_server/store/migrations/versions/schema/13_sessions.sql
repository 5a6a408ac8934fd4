-- Sessions of the dashboard: a browser that signed in with an API key, a token or a sign-in link.

-- Only hashes of cookies and links are stored. Until `opened_at` the row is a sign-in link: `hash` is that of the link,
-- and whoever opens it first gets the session. `secret` signs the forms of the session, so that it outlives a change of
-- the cookie. `hash` changes with each rotation; `old_hash` is valid until the browser has sent the new one. A session
-- has the scopes of the key or token that it was made with and ends with it: a key is checked in each look-up, and a
-- token's end is `ends_by`.
CREATE TABLE sessions (
    id UUID DEFAULT gen_random_uuid() NOT NULL,
    user_id UUID NOT NULL,
    hash TEXT NOT NULL,
    old_hash TEXT,
    secret TEXT NOT NULL,
    key_id TEXT,
    token_subject TEXT,
    scopes TEXT[] NOT NULL,
    browser TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    opened_at TIMESTAMP WITH TIME ZONE,
    rotated_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    last_used_at TIMESTAMP WITH TIME ZONE DEFAULT clock() NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ends_by TIMESTAMP WITH TIME ZONE,
    ended_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT sessions_made_with_one_credential CHECK (num_nonnulls(key_id, token_subject) = 1),
    FOREIGN KEY(user_id) REFERENCES users (id),
    FOREIGN KEY(key_id) REFERENCES api_keys (id),
    UNIQUE (hash),
    UNIQUE (old_hash)
)
 WITH (fillfactor = 75);
CREATE INDEX sessions_user ON sessions (user_id, created_at) WHERE ended_at IS NULL;
CREATE INDEX sessions_key ON sessions (key_id) WHERE key_id IS NOT NULL;
CREATE INDEX sessions_expired ON sessions (expires_at);

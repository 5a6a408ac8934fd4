"""One plain function per sweep; beat only says when."""

"""The service: intake, gate, dispatch, outcome, and the faces in front of them."""

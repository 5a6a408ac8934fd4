"""The shop's own tests; they need a running worker, and know nothing of what carries the tasks.

PYTHONPATH=before python -m unittest test_shop
"""

import unittest

import shop

SECONDS = 30


class ShopTest(unittest.TestCase):
    """Orders, as the shop's people expect them."""

    def test_an_order_is_paid_and_has_a_receipt(self) -> None:
        """All items are charged together, after the bank's first refusal."""
        text = shop.order("ada", ["pillow", "lamp"]).get(timeout=SECONDS)

        self.assertEqual(text, "ada paid 50")

    def test_an_item_that_is_not_on_sale_is_named(self) -> None:
        """The exception of the task arrives as it was raised."""
        with self.assertRaisesRegex(shop.OutOfStock, "mirror"):
            shop.reserve.delay("mirror").get(timeout=SECONDS)

    def test_a_reminder_can_be_revoked(self) -> None:
        """A customer who writes first needs no reminder."""
        reminder = shop.remind_later("ada")
        self.assertFalse(reminder.ready())

        reminder.revoke()


if __name__ == "__main__":
    unittest.main()

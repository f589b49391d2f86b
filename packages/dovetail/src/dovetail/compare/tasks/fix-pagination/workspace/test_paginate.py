import unittest

from paginate import page, page_count


class PaginateTest(unittest.TestCase):
    def test_full_pages(self):
        self.assertEqual(page_count([1, 2, 3, 4], 2), 2)
        self.assertEqual(page([1, 2, 3, 4], 2, 2), [3, 4])


if __name__ == "__main__":
    unittest.main()

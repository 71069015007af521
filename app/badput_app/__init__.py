"""The app: charts of the books, and the pages that show them."""

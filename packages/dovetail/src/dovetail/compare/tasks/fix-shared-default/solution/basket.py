"""A shopping basket."""


class Basket:
    def __init__(self, items=()):
        self.items = [dict(item) for item in items]

    def add(self, name, price):
        self.items.append({"name": name, "price": price})

    def total(self):
        return sum(item["price"] for item in self.items)

    def with_discount(self, percent):
        basket = Basket(self.items)
        for item in basket.items:
            item["price"] = item["price"] * (100 - percent) / 100
        return basket

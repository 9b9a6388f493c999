import unittest

from unitkit import DimensionError, Quantity, UnitError, convert


class ConvertTest(unittest.TestCase):
    def test_simple(self):
        self.assertAlmostEqual(convert(90, "km/h", "m/s"), 25.0)
        self.assertAlmostEqual(convert(1, "mi", "km"), 1.609344)
        self.assertAlmostEqual(convert(2, "l", "m^3"), 0.002)

    def test_products_and_powers(self):
        self.assertAlmostEqual(convert(3, "kg*m/s^2", "N"), 3.0)
        self.assertAlmostEqual(convert(1, "kW*h", "MJ"), 3.6)
        self.assertAlmostEqual(convert(1, "s^-1", "1/min"), 60.0)

    def test_temperatures(self):
        self.assertAlmostEqual(convert(20, "degC", "K"), 293.15)
        self.assertAlmostEqual(convert(212, "degF", "degC"), 100.0)

    def test_different_dimensions(self):
        with self.assertRaisesRegex(DimensionError, "length"):
            convert(1, "m", "s")

    def test_unknown(self):
        for text in ("parsec", "m^", "m**s", "kmin", "m/(s)"):
            with self.assertRaises(UnitError):
                convert(1, text, "m")


class QuantityTest(unittest.TestCase):
    def test_parse_and_text(self):
        self.assertEqual(str(Quantity.parse("2.5km").to("m")), "2500 m")
        self.assertEqual(str(Quantity.parse("-1e3")), "-1000")

    def test_sum(self):
        self.assertEqual(str(Quantity(1, "km") + Quantity(500, "m")), "1.5 km")

    def test_order(self):
        self.assertTrue(Quantity(1, "ft") < Quantity(1, "m"))
        self.assertTrue(Quantity(1, "h").is_close(Quantity(60, "min")))


if __name__ == "__main__":
    unittest.main()

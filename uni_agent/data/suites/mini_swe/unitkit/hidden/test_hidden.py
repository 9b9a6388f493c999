import unittest

from unitkit import DimensionError, Quantity, convert


class TwoDivisions(unittest.TestCase):
    def test_specific_heat(self):
        self.assertAlmostEqual(convert(1, "kJ/kg/K", "m^2*s^-2*K^-1"), 1000.0)
        self.assertAlmostEqual(convert(1, "kJ/kg/K", "J/g/K"), 1.0)
        self.assertAlmostEqual(convert(1, "cal/g/K", "J/kg/K"), 4184.0)

    def test_acceleration(self):
        self.assertAlmostEqual(convert(1, "m/s/s", "m/s^2"), 1.0)
        self.assertAlmostEqual(convert(36, "km/h/s", "m/s^2"), 10.0)

    def test_division_ends_at_the_product(self):
        self.assertAlmostEqual(convert(1, "W/m*s", "J/m"), 1.0)

    def test_three(self):
        self.assertAlmostEqual(convert(1, "J/m/m/m", "Pa"), 1.0)


class TemperatureDifferences(unittest.TestCase):
    def test_inside_a_larger_unit(self):
        self.assertAlmostEqual(convert(9, "J/degF", "J/degC"), 16.2)
        self.assertAlmostEqual(convert(5, "degC/min", "K/min"), 5.0)
        self.assertAlmostEqual(convert(1, "degC*m", "K*m"), 1.0)

    def test_one_over_degree(self):
        self.assertAlmostEqual(convert(1, "1/degC", "1/K"), 1.0)


class StillRight(unittest.TestCase):
    def test_alone(self):
        self.assertAlmostEqual(convert(-40, "degC", "degF"), -40.0)
        self.assertAlmostEqual(convert(0, "K", "degC"), -273.15)

    def test_no_unit(self):
        self.assertEqual(convert(2, "", "1"), 2.0)
        with self.assertRaises(DimensionError):
            convert(2, "", "m")

    def test_difference_of_quantities(self):
        self.assertTrue((Quantity(3, "m") - Quantity(100, "cm")).is_close(Quantity(2, "m")))


if __name__ == "__main__":
    unittest.main()

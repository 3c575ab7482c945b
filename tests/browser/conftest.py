"""A browser: `apt-get install chromium chromium-driver`, `pip install selenium`."""

import shutil

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb",
)  # fmt: skip


class Browser:
    """A window on one file at a time."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, width=1100, dark=False, media="", script=True):
        """Load a file; what the page then says on the console is in `errors`."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.command("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get_log("browser")
        self.driver.get(f"file://{path}")

    def command(self, name, **options):
        return self.driver.execute_cdp_cmd(name, options)

    def ask(self, script, *arguments):
        """The value of a JavaScript function body."""
        return self.driver.execute_script(script, *arguments)

    def errors(self):
        """What the console got since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def press(self, *keys):
        """Keys to whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    assert binary, "there is no chromium: apt-get install chromium chromium-driver"
    assert driver, "there is no chromedriver: apt-get install chromium-driver"
    options = Options()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    yield Browser(window)
    window.quit()

"""sushy-tools' Redfish emulator, whose fake systems are real processes: redfish.py DIRECTORY PORT MACHINE...

DIRECTORY has users (an htpasswd file). Each MACHINE is the data directory of a server; the program `machine` beside this file turns it on
and reports its state. Their systems' UUIDs are 1, 2 and so on. Every order is appended to MACHINE.orders: a test sees from it that nothing was
forced off.
"""

import os
import subprocess
import sys
import uuid

from sushy_tools.emulator import main
from sushy_tools.emulator.resources.systems import fakedriver

HERE = os.path.dirname(os.path.abspath(__file__))
directory, port, machines = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
by_uuid = {str(uuid.UUID(int=number)): path for number, path in enumerate(machines, 1)}


def machine(path, order):
    done = subprocess.run([HERE + "/machine", path, order], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


class Machines(fakedriver.FakeDriver):
    def get_power_state(self, identity):
        return "On" if machine(by_uuid[self.uuid(identity)], "state") == "on" else "Off"

    def set_power_state(self, identity, state):
        path = by_uuid[self.uuid(identity)]
        with open(path + ".orders", "a") as orders:
            orders.write(f"{state}\n")
        if state == "On":
            machine(path, "on")


fakedriver.FakeDriver.get_power_state = Machines.get_power_state
fakedriver.FakeDriver.set_power_state = Machines.set_power_state
systems = [
    {"uuid": key, "name": os.path.basename(path), "power_state": "On", "external_notifier": False, "nics": []}
    for key, path in by_uuid.items()
]
with open(directory + "/conf.py", "w") as conf:
    conf.write(f"SUSHY_EMULATOR_STATE_DIR = {directory!r}\n")
    conf.write(f"SUSHY_EMULATOR_AUTH_FILE = {directory + '/users'!r}\n")
    conf.write(f"SUSHY_EMULATOR_FAKE_SYSTEMS = {systems!r}\n")
sys.argv[1:] = ["--fake", "-i", "127.0.0.1", "-p", str(port), "--config", directory + "/conf.py"]
sys.exit(main.main())

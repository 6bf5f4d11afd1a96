"""Network cards that listen for magic packets: wol.py LOG MAC=MACHINE...

Receives what is broadcast to UDP port 9 in its network namespace. A packet that holds, after six bytes 0xff, a MAC sixteen times turns the
MACHINE on, by the program `machine` beside this file; so does no other packet. Every magic packet, also of unknown cards, becomes a line of
LOG: sender and MAC.
"""

import os
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
log = sys.argv[1]
cards = dict(argument.split("=", 1) for argument in sys.argv[2:])
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind(("", 9))
# The test waits for this line: packets sent before are lost.
print("listening", flush=True)
while True:
    packet, sender = listener.recvfrom(2048)
    at = packet.find(b"\xff" * 6)
    mac = packet[at + 6 : at + 12]
    if at < 0 or len(mac) < 6 or packet[at + 6 : at + 102] != mac * 16:
        continue
    mac = mac.hex(":")
    with open(log, "a") as lines:
        lines.write(f"{sender[0]} {mac}\n")
    if mac in cards:
        subprocess.run([HERE + "/machine", cards[mac], "on"], check=True)

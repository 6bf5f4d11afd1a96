"""The sleeping network cards of a rack: wol.py LOG CARD=MACHINE...

Receives what is broadcast to UDP port 9 in its network namespace, or sent to all nodes of a link by IPv6. A packet that holds, after six bytes 0xff, the address of a CARD sixteen
times turns its MACHINE on, by the program `machine` beside this file, if the card's setting (the file $WOL_CARDS/CARD, see wol_card.c) has
the letter g. Every magic packet becomes a line of LOG: its sender and the address in it.
"""

import os
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def text(path):
    with open(path) as file:
        return file.read().strip()


log = sys.argv[1]
machines = {}
for argument in sys.argv[2:]:
    card, machine = argument.split("=", 1)
    machines[text(f"/sys/class/net/{card}/address")] = (card, machine)
listener = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
# IPv4, too, with addresses that begin with ::ffff:.
listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
listener.bind(("::", 9))
# The test waits for this: packets that are sent before are lost.
open(log, "w").close()
while True:
    packet, sender = listener.recvfrom(2048)
    at = packet.find(b"\xff" * 6)
    mac = packet[at + 6 : at + 12]
    if at < 0 or len(mac) < 6 or packet[at + 6 : at + 102] != mac * 16:
        continue
    mac = mac.hex(":")
    with open(log, "a") as lines:
        lines.write(f"{sender[0].removeprefix('::ffff:').split('%')[0]} {mac}\n")
    card, machine = machines.get(mac, (None, None))
    if card and "g" in text(os.environ["WOL_CARDS"] + "/" + card):
        subprocess.run([HERE + "/machine", machine, "on"], check=True)

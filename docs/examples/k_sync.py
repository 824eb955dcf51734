"""K-sync SGD: a round is applied as soon as k workers have pushed; later pushes take part in a later one."""

from gradientflow.policies import Answer, Policy


class KSync(Policy):
    def __init__(self, k):
        self.k = k

    def start(self, workers):
        return Running(self.k, workers)


class Running:
    def __init__(self, k, workers):
        self.k, self.here, self.waiting = k, set(range(workers)), []

    def pushed(self, worker, seconds):
        self.waiting.append(worker)
        return self.answer()

    def departed(self, worker, seconds):
        self.here.discard(worker)
        return self.answer()

    def answer(self):
        if not self.waiting or len(self.waiting) < min(self.k, len(self.here)):
            return Answer()
        workers, self.waiting = sorted(self.waiting), []
        return Answer(apply=[workers], release=workers)

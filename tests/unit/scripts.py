"""Text in many scripts, and strings made of it for tokenizers.

defines: PHRASES, strings_of_many_scripts
"""

# ruff: noqa: RUF001 - the letters are meant
import random
from collections.abc import Iterator

PHRASES = [
    "All human beings are born free and equal in dignity and rights.",
    "They are endowed with reason and conscience and should act towards one another.",
    "The quick brown fox jumps over the lazy dog, 1234567890 times.",
    "def f(x):\n\treturn [y * 2 for y in x if y != '<td>']  # comment",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Усі люди народжуються вільними і рівними у своїй гідності та правах.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں۔",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "ਸਾਰੇ ਮਨੁੱਖ ਸੁਤੰਤਰ ਅਤੇ ਬਰਾਬਰ ਪੈਦਾ ਹੁੰਦੇ ਹਨ।",
    "બધા મનુષ્યો જન્મથી મુક્ત અને સમાન છે.",
    "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "మనుష్యులందరూ స్వేచ్ఛగా పుట్టుదురు.",
    "ಎಲ್ಲಾ ಮಾನವರು ಸ್ವತಂತ್ರರಾಗಿ ಹುಟ್ಟಿದ್ದಾರೆ.",
    "മനുഷ്യരെല്ലാവരും തുല്യാവകാശങ്ങളോടെ ജനിച്ചവരാണ്.",
    "සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์",
    "ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ",
    "လူတိုင်းသည် တူညီ လွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့်",
    "មនុស្សទាំងអស់កើតមកមានសេរីភាព",
    "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས",
    "人人生而自由，在尊严和权利上一律平等。",
    "人人生而自由，在尊嚴和權利上一律平等。",
    "すべての人間は、生まれながらにして自由であり、平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար.",
    "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "Хүн бүр төрж мэндлэхдээ эрх чөлөөтэй",
    "ᠬᠦᠮᠦᠨ ᠪᠦᠷ ᠲᠥᠷᠥᠵᠦ",
    "ᎾᏂᎥᎢ ᏴᏫ ᎨᏥᏁᎳ",
    "ⴰⵔ ⴷ ⵜⵜⵍⴰⵍⴰⵏ ⵎⵉⴷⴷⵏ",
    "𐌰𐌻𐌻𐌰𐌹 𐌼𐌰𐌽𐌽𐌰",
    "😀 👩‍👩‍👧‍👦 🇩🇪 ✊🏿 ☃️ ①②③ ½ ∑∫√ → ␀",
]
ODD = ["\x00", "\x1b[31m", "\u200b", "\u202e", "\ufeff", "\ufffd", "\u0301", "\U0010fffd", "\u2028"]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u00a0", "\u3000"]


def strings_of_many_scripts(count: int) -> Iterator[str]:
    """Phrases whole, cut anywhere and joined, with odd characters and spaces between them; the
    same ones each time."""
    draw = random.Random(40)
    yield from ("", " ", "  a", "a ", "\n", *PHRASES)
    for _ in range(count - len(PHRASES) - 5):
        parts: list[str] = []
        for _ in range(draw.randrange(1, 5)):
            phrase = draw.choice(PHRASES)
            begin = draw.randrange(len(phrase))
            parts.append(phrase[begin : begin + draw.randrange(1, 25)])
            parts.append(draw.choice((*SPACES, *SPACES, "", *ODD)))
        yield "".join(parts)
